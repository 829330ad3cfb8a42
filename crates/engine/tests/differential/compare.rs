//! What two probes have printed, line by line, without what must differ.

use std::collections::BTreeMap;
use std::fs;

use crate::GROUP;

/// The lines of each section, sorted where their order has no meaning.
pub(crate) type Sections = BTreeMap<String, Vec<String>>;

pub(crate) fn sections(text: &str) -> Sections {
    let mut all = Sections::new();
    let mut current = String::new();
    for line in text.lines() {
        match line.strip_prefix("== ") {
            Some(name) => current = name.to_owned(),
            None => all.entry(current.clone()).or_default().push(normal(&current, line)),
        }
    }
    all
}

/// Differences as `section: who: line`, without those that are allowed.
pub(crate) fn differences(case: &str, process: &str, ours: &str, theirs: &str) -> Vec<String> {
    let (ours, theirs) = (sections(ours), sections(theirs));
    assert!(ours.len() > 15 && ours.keys().eq(theirs.keys()), "{case} {process}: {:?}", ours.keys());
    let mut found = vec![];
    for (section, lines) in &ours {
        let other = &theirs[section];
        let only = |from: &[String], in_other: &[String]| -> Vec<String> {
            let mut left = in_other.to_vec();
            let is_new = |line: &&String| match left.iter().position(|known| known == *line) {
                Some(at) => {
                    left.remove(at);
                    false
                }
                None => true,
            };
            from.iter().filter(is_new).cloned().collect()
        };
        for (who, lines) in [("engine", only(lines, other)), ("runc", only(other, lines))] {
            let new = lines.into_iter().filter(|line| !is_allowed(case, process, section, who, line));
            found.extend(new.map(|line| format!("{case} {process} {section} {who}: {line}")));
        }
    }
    found
}

/// Numbers that the kernel chooses are replaced by their meaning.
fn normal(section: &str, line: &str) -> String {
    match section {
        "mountinfo" => {
            let word = |word: &str| match word.split_once(':') {
                Some((kind @ ("shared" | "master" | "propagate_from"), _)) => kind.to_owned(),
                _ => word.to_owned(),
            };
            line.split(' ').map(word).collect::<Vec<_>>().join(" ")
        }
        "namespaces" => {
            let (name, id) = line.split_once(' ').unwrap_or((line, ""));
            let host = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
            format!("{name} {}", if host.as_os_str() == id { "of the host" } else { "of its own" })
        }
        // The number of a cgroup hierarchy is that of the host.
        "cgroup" => line.replace(&format!("{GROUP}-{}", std::process::id()), "GROUP"),
        "verdicts" => {
            line.split_whitespace().map(|word| if is_pid(word) { "N" } else { word }).collect::<Vec<_>>().join(" ")
        }
        _ => line.to_owned(),
    }
}

fn is_pid(word: &str) -> bool {
    word.trim_end_matches(':').parse::<u32>().is_ok_and(|number| number > 5)
}

fn is_allowed(case: &str, process: &str, section: &str, who: &str, line: &str) -> bool {
    include_str!("allowed.txt").lines().filter(|rule| !rule.starts_with('#') && !rule.is_empty()).any(|rule| {
        let mut parts = rule.splitn(5, ' ');
        let mut is = |value: &str| parts.next().is_some_and(|part| part == "*" || part == value);
        is(case) && is(process) && is(section) && is(who) && parts.next().is_some_and(|begin| line.starts_with(begin))
    })
}
