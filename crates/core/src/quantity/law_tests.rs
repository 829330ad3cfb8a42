//! Laws that hold for all quantities.

use proptest::prelude::*;

use super::*;

/// Quantities of every format.
fn quantity() -> impl Strategy<Value = Amount> {
    let suffix = prop::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "e2", "E-3"]);
    ("-?[0-9]{1,12}(\\.[0-9]{1,9})?", suffix).prop_map(|(number, suffix)| format!("{number}{suffix}").parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_quantity_prints_as_a_quantity_of_the_same_value(a in quantity()) {
        let printed = a.to_string();
        let again: Amount = printed.parse().unwrap();
        prop_assert_eq!(a, again, "{}", printed);
        // 2000 bytes print as 2000, not with a binary suffix, and that is 2k: from there on nothing changes.
        let canonical = again.to_string();
        prop_assert_eq!(canonical.parse::<Amount>().unwrap().to_string(), canonical);
    }

    #[test]
    fn sums_do_not_depend_on_the_order_and_zero_changes_nothing(a in quantity(), b in quantity(), c in quantity()) {
        prop_assert_eq!(a.plus(b), b.plus(a));
        prop_assert_eq!(a.plus(b).plus(c), a.plus(b.plus(c)));
        prop_assert_eq!(a.plus(Amount::ZERO), a);
    }

    #[test]
    fn rounding_keeps_the_order_and_never_loses_a_request(a in quantity(), b in quantity()) {
        let (low, high) = (a.min(b), a.max(b));
        prop_assert!(low.value() <= high.value() && low.milli_value() <= high.milli_value());
        prop_assert!(!a.is_positive() || a.value() >= 1 && a.milli_value() >= 1);
        prop_assert_eq!(a.round_to_milli().milli_value(), a.milli_value());
    }

    #[test]
    fn any_text_is_a_quantity_or_an_error(text in "[-+0-9.eEKMGTPimunk]{0,40}|\\PC{0,40}") {
        if let Ok(amount) = text.parse::<Amount>() {
            prop_assert_eq!(amount.to_string().parse::<Amount>().unwrap(), amount);
        }
    }
}
