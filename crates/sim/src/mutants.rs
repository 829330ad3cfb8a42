//! Deliberate mistakes in core, one at a time: some seed, the termination matrix or a scenario must find each, and the model check some of
//! them.

#[cfg(test)]
mod tests {
    use podwright_core::mutate::{self, ALL, Mutant};

    use crate::{explore, pressure, schedule, termination};

    /// What found the mistake, if anything did.
    fn caught(mutant: Mutant) -> Option<String> {
        mutate::activate(Some(mutant));
        let seed = (0..SEEDS).find_map(|seed| {
            let violation = schedule::run(seed, false).violation?;
            Some(format!("seed {seed}: {}", violation.rule))
        });
        let found = seed.or_else(|| {
            let mut cases = termination::cases().filter(|case| case.death.is_none());
            cases.find_map(|case| Some(format!("{case:?}: {}", termination::run(&case).err()?)))
        });
        let found = found.or_else(|| (0..5).find_map(|seed| pressure::run(seed).err()));
        mutate::activate(None);
        found
    }

    #[test]
    fn every_mutant_is_caught() {
        std::panic::set_hook(Box::new(|_| {}));
        let found: Vec<_> = ALL.into_iter().map(|mutant| (mutant, caught(mutant))).collect();
        let _ = std::panic::take_hook();
        for (mutant, by) in &found {
            println!("{mutant:?}: {}", by.as_deref().unwrap_or("NOT CAUGHT"));
        }
        let missed: Vec<_> = found.iter().filter(|(_, by)| by.is_none()).map(|(mutant, _)| mutant).collect();
        assert!(missed.is_empty(), "not caught: {missed:?}");
    }

    #[test]
    fn the_model_check_catches_some_mutants() {
        let expected = [
            (Mutant::StaleObservation, "16 "),
            (Mutant::DeadlineMovesLater, "3 "),
            (Mutant::ExitNotRecorded, "10 "),
            (Mutant::DoubtIsFailure, "16 "),
        ];
        for (mutant, rule) in expected {
            mutate::activate(Some(mutant));
            let broken = explore::explore(1, 3).broken;
            mutate::activate(None);
            assert!(broken.as_ref().is_some_and(|(_, v)| v.rule.starts_with(rule)), "{mutant:?}: {broken:?}");
        }
    }

    /// Enough for the mutant that is hardest to find.
    const SEEDS: u64 = 3000;
}
