//! A test runner for programs without threads: one that forks, as a launcher or a zygote does, must have only one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Runs the tests that the arguments of this program select, one after the other on this thread. Takes the filters, `--exact` and
/// `--list` of cargo's own runner, and prints its closing lines, from which failed tests are counted and run again.
pub fn run_on_main_thread<T: Copy>(tests: &[(&str, T)], run: impl Fn(T)) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if has("--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen: Vec<_> = tests.iter().filter(|(name, _)| is_chosen(name, &filters, has("--exact"))).collect();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = vec![];
    for (name, test) in &chosen {
        let start = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(|| run(*test))).is_ok();
        println!("test {name} ... {} ({:.1?})", if passed { "ok" } else { "FAILED" }, start.elapsed());
        if !passed {
            failed.push(*name);
        }
    }
    println!("\n{}", closing_lines(chosen.len(), &failed));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_chosen(name: &str, filters: &[&String], exact: bool) -> bool {
    filters.is_empty() || filters.iter().any(|filter| if exact { name == *filter } else { name.contains(*filter) })
}

fn closing_lines(run: usize, failed: &[&str]) -> String {
    let (passed, count) = (run - failed.len(), failed.len());
    if failed.is_empty() {
        return format!("test result: ok. {passed} passed; 0 failed");
    }
    format!("failures:\n    {}\n\ntest result: FAILED. {passed} passed; {count} failed", failed.join("\n    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_select_by_part_or_exactly() {
        let filters = ["a_link".to_owned(), "other".to_owned()];
        let filters: Vec<&String> = filters.iter().collect();
        assert!(is_chosen("a_link_is_refused", &filters, false) && !is_chosen("a_link_is_refused", &filters, true));
        assert!(is_chosen("other", &filters, true) && !is_chosen("third", &filters, false));
        assert!(is_chosen("third", &[], true));
    }

    #[test]
    fn closing_lines_are_those_of_cargo() {
        assert_eq!(closing_lines(3, &[]), "test result: ok. 3 passed; 0 failed");
        let lines = "failures:\n    a\n    b\n\ntest result: FAILED. 1 passed; 2 failed";
        assert_eq!(closing_lines(3, &["a", "b"]), lines);
    }
}
