//! Masks values that differ in every run: times, ages, ids, addresses, directories, the name of the runtime, and column widths.

use std::path::Path;

const WEEKDAYS: [&str; 7] = ["Mon, ", "Tue, ", "Wed, ", "Thu, ", "Fri, ", "Sat, ", "Sun, "];

pub(crate) fn all(text: &str, scratch: &Path) -> String {
    let text = text.replace(&scratch.display().to_string(), "<scratch>");
    let text = text.replace("containerd://", "<runtime>://").replace("podwright://", "<runtime>://");
    let lines = text.lines().map(|line| {
        let line = counts(&whole_dates(line));
        let indent = line.len() - line.trim_start().len();
        // Columns are as wide as their widest cell, masked or not.
        let mut words = vec![];
        let mut gap = false;
        for word in line.trim_start().split(' ') {
            if word.is_empty() {
                gap = true;
                continue;
            }
            if gap && !words.is_empty() {
                words.push(String::new());
            }
            gap = false;
            words.push(masked(word));
        }
        format!("{}{}\n", " ".repeat(indent), words.join(" "))
    });
    lines.collect()
}

/// `Mon, 1 Jan 2024 00:00:00 +0000`
fn whole_dates(line: &str) -> String {
    let begin = WEEKDAYS.iter().find_map(|day| line.find(day));
    match (begin, line.find(" +0000")) {
        (Some(begin), Some(end)) if begin < end => format!("{}<time>{}", &line[..begin], &line[end + 6..]),
        _ => line.to_owned(),
    }
}

/// Numbers that depend on timing or on the host.
fn counts(line: &str) -> String {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    for n in 1..words.len() {
        let of_machine = ["used:", "capacity:"].contains(&words[n - 1].as_str());
        let again = words[n].starts_with("times)");
        let at = if again { n - 1 } else { n };
        if of_machine || again {
            let digits = words[at].trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
            words[at] = words[at].replace(&digits, "<n>");
        }
    }
    for n in 4..words.len() {
        if words[n - 1..=n] == ["are", "free"] {
            (words[n - 4], words[n - 2]) = ("<n>".into(), "<n>".into());
        }
        if words[n - 3..n - 1] == ["has", "only"] {
            words[n - 1] = "<n>".into();
        }
    }
    words.join(" ")
}

/// A word, its punctuation kept.
fn masked(word: &str) -> String {
    let inner = word.trim_matches(|c: char| "()[]{}\",;:".contains(c));
    let Some(mask) = mask(inner) else { return in_parts(word) };
    word.replace(inner, mask)
}

/// Ids and addresses within longer words: paths, references, URLs.
fn in_parts(word: &str) -> String {
    let parts = word.split_inclusive(|c: char| "/:@_=\"()".contains(c)).map(|part| {
        let inner = part.trim_end_matches(|c: char| "/:@_=\",.;()".contains(c));
        match mask(inner) {
            Some(mask) if mask == "<id>" || mask == "<ip>" => part.replace(inner, mask),
            _ => part.to_owned(),
        }
    });
    parts.collect()
}

fn mask(word: &str) -> Option<&'static str> {
    if !word.is_ascii() {
        return None;
    }
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let count = |parts: Vec<&str>, n: usize| parts.len() == n && parts.iter().all(|part| digits(part));
    if word.len() >= 12 && word.bytes().all(|b| b.is_ascii_hexdigit()) && word.bytes().any(|b| b.is_ascii_digit()) {
        return Some("<id>");
    }
    if word != "127.0.0.1" && count(word.split('.').collect(), 4) {
        return Some("<ip>");
    }
    if word.len() == 10 && count(word.split('-').collect(), 3) {
        return Some("<date>");
    }
    if word.len() >= 8 && count(word.split([':', '.']).collect::<Vec<_>>(), if word.contains('.') { 4 } else { 3 }) {
        return Some("<time>");
    }
    if word.len() > 19 && word.ends_with('Z') && word[4..].starts_with('-') && word[10..].starts_with('T') {
        return Some("<time>");
    }
    let units = word.trim_end_matches("ms").trim_end_matches(['s', 'm', 'h', 'd']);
    let is_age = units.len() < word.len() && units.bytes().all(|b| b.is_ascii_digit() || b"smhd".contains(&b));
    (is_age && word.starts_with(|c: char| c.is_ascii_digit())).then_some("<age>")
}
