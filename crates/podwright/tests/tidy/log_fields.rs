//! Log lines: constant messages, and fields with the names of the table in CONTRIBUTING.md.

use std::collections::BTreeSet;

use super::shape::SourceFile;

/// The field names of the table below the heading "Log lines".
pub(crate) fn table(text: &str) -> BTreeSet<&str> {
    let rows =
        text.lines().skip_while(|line| *line != "## Log lines").skip(1).take_while(|line| !line.starts_with("## "));
    let first_cells = rows.filter_map(|row| row.strip_prefix("| `")).filter_map(|row| row.split('|').next());
    first_cells.flat_map(|cell| cell.split(['`', ',', ' '])).filter(|name| !name.is_empty()).collect()
}

/// Fields of a file that are not in the table, and messages that are not constant: each with its line.
pub(crate) fn unknown_fields(file: &SourceFile, text: &str, table: &BTreeSet<&str>) -> Vec<String> {
    let (code, text): (Vec<char>, Vec<char>) = (file.code.chars().collect(), text.chars().collect());
    let mut found = vec![];
    for (at, is_span) in macros(&file.code) {
        let line = 1 + code[..at].iter().filter(|c| **c == '\n').count();
        let mut has_message = false;
        for (from, to) in arguments(&code, at) {
            let argument: String = code[from..to].iter().collect();
            let argument = argument.trim();
            if argument.is_empty() {
                // A literal: the name of a span, or the message.
                let literal: String = text[from..to].iter().collect();
                if !is_span && literal.replace("{{", "").contains('{') {
                    found.push(format!("{line}: the message is not constant"));
                }
                has_message = !is_span;
            } else if has_message {
                found.push(format!("{line}: the message is not constant"));
            } else if let Some(name) = field_name(argument).filter(|name| !table.contains(name)) {
                found.push(format!("{line}: {name}"));
            }
        }
    }
    found
}

/// Where the arguments of tracing's macros begin, in characters, and whether it is a span.
fn macros(code: &str) -> Vec<(usize, bool)> {
    const LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];
    let mut found = vec![];
    for (at, _) in code.match_indices("!(") {
        let name = code[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let level = name.strip_suffix("_span").unwrap_or(name);
        if LEVELS.contains(&level) {
            found.push((code[..at + 2].chars().count(), level != name));
        }
    }
    found
}

/// The ranges of the arguments that begin here, up to the closing parenthesis.
fn arguments(code: &[char], begin: usize) -> Vec<(usize, usize)> {
    let (mut found, mut depth, mut from) = (vec![], 0_usize, begin);
    for (at, c) in code.iter().enumerate().skip(begin) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                found.push((from, at));
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push((from, at));
                from = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The name of a field such as `%error`, `uid = %pod.uid`; `target: …` is none.
fn field_name(argument: &str) -> Option<&str> {
    let name = argument.split_once('=').map_or(argument, |(name, _)| name).trim().trim_start_matches(['%', '?']);
    let is_option = ["target", "parent", "name"].iter().any(|option| argument.starts_with(&format!("{option}:")));
    (!is_option).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_from_the_document() {
        let text = "| `other` | x |\n## Log lines\ntext `no`\n\n| field | content |\n|---|---|\n| `pod` | a `b` |\n| `uid`, `call_id` | c |\n## Errors\n| `no` | d |\n";
        assert_eq!(table(text), BTreeSet::from(["pod", "uid", "call_id"]));
    }

    #[test]
    fn unknown_fields_and_messages_with_values_are_found() {
        let known = BTreeSet::from(["pod", "error"]);
        for (line, wrong) in [
            (r#"warn!(pod = %name, %error, "failed: {{}} (é, ü)");"#, vec![]),
            (r#"tracing::warn!(target: TRACE, error = f(a, b), "failed");"#, vec![]),
            ("info!(pod,\n    who = x, \"up\",\n);", vec!["1: who"]),
            (r#"debug!(?why, "up");"#, vec!["1: why"]),
            (r#"info_span!("call", pod, id = 1);"#, vec!["1: id"]),
            (r#"error!("{error:#}");"#, vec!["1: the message is not constant"]),
            (r#"error!(pod, "{}", x);"#, vec!["1: the message is not constant", "1: the message is not constant"]),
            (r#"// warn!(who, "no")"#, vec![]),
            (r#"my_error!(who);"#, vec![]),
        ] {
            let file = SourceFile::new("crates/x/src/a.rs", line);
            assert_eq!(unknown_fields(&file, line, &known), wrong, "{line}");
        }
    }
}
