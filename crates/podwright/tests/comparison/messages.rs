//! Messages of events, without what differs in every run.

use super::fields::masked;

/// The text with ids, durations and addresses replaced.
pub(crate) fn comparable(message: &str, uid: &str) -> String {
    let mut shown = String::new();
    let text = masked(message, uid);
    let mut rest = text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let inside_word = before.chars().last().is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
        shown += before;
        let end = from.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(from.len());
        let number = from[..end].trim_end_matches('.');
        let after = &from[number.len()..];
        let unit = ["ms", "µs", "ns", "s", "m", "h"].iter().find(|unit| after.starts_with(**unit));
        let is_duration = unit.is_some_and(|unit| !after[unit.len()..].starts_with(|c: char| c.is_alphabetic()));
        if !inside_word && number.matches('.').count() == 3 {
            shown += "ADDRESS";
            rest = after;
            // The local port of a connection.
            if let Some((port, there)) = after.strip_prefix(':').and_then(|after| after.split_once("->"))
                && port.bytes().all(|b| b.is_ascii_digit())
            {
                shown += ":PORT->";
                rest = there;
            }
        } else if !inside_word && is_duration {
            shown += "TIME";
            rest = &after[unit.map_or(0, |unit| unit.len())..];
        } else {
            shown += number;
            rest = after;
        }
    }
    shown + rest
}

#[test]
fn durations_and_addresses_are_masked_and_other_numbers_are_not() {
    let rows = [
        (
            r#"Successfully pulled image "a:1.36" in 12ms (1.5s including waiting). Image size: 77 bytes."#,
            r#"Successfully pulled image "a:1.36" in TIME (TIME including waiting). Image size: 77 bytes."#,
        ),
        (
            r#"Get "http://10.88.0.5:8080/none": dial tcp 10.88.0.5:8080: connect: connection refused"#,
            r#"Get "http://ADDRESS:8080/none": dial tcp ADDRESS:8080: connect: connection refused"#,
        ),
        ("read tcp 10.88.0.1:41234->10.88.0.5:8080: EOF", "read tcp ADDRESS:PORT->ADDRESS:8080: EOF"),
        ("failed with statuscode: 404", "failed with statuscode: 404"),
    ];
    for (message, expected) in rows {
        assert_eq!(comparable(message, ""), expected);
    }
}
