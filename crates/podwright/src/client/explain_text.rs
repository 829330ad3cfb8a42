//! The text of `podwright explain` for a terminal: times in the local time zone, and long lines wrapped.
//!
//! The agent writes times in UTC, as `2024-01-01 00:00:00.000`.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The length of a time.
const TIME_LENGTH: usize = "2024-01-01 00:00:00.000".len();
/// Texts before a time, besides the beginning of a line of the history.
const BEFORE_TIMES: [&str; 3] = ["since ", "until ", "was due at "];
/// A narrower terminal is not wrapped for.
const WIDTH_MIN: usize = 40;

/// Replaces the times in UTC by those of this zone, and names it in the heading. Nothing changes in UTC.
pub(super) fn in_time_zone(text: &str, zone: &TimeZone) -> String {
    let name = zone.iana_name().unwrap_or("local time");
    if *zone == TimeZone::UTC || ["UTC", "Etc/UTC", "Etc/Unknown"].contains(&name) {
        return text.to_owned();
    }
    let convert = |line: &str| {
        if line == "What happened (UTC)" {
            return format!("What happened ({name})\n");
        }
        let begin = line.len() - line.trim_start().len();
        let begin =
            begin + BEFORE_TIMES.iter().find(|text| line[begin..].starts_with(**text)).map_or(0, |text| text.len());
        let end = begin + TIME_LENGTH;
        let local = line.get(begin..end).and_then(|time| local_time(time, zone));
        local.map_or(format!("{line}\n"), |local| format!("{}{local}{}\n", &line[..begin], &line[end..]))
    };
    text.lines().map(convert).collect()
}

fn local_time(time: &str, zone: &TimeZone) -> Option<String> {
    let time = DateTime::strptime("%F %T%.3f", time).ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(time.with_time_zone(zone.clone()).strftime("%F %T%.3f").to_string())
}

/// Wraps lines at spaces to this width. Later lines of a line of the history begin below its text, others are indented further.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    if width < WIDTH_MIN {
        return text.to_owned();
    }
    let mut out = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let is_time =
            line.get(indent..indent + TIME_LENGTH).is_some_and(|t| DateTime::strptime("%F %T%.3f", t).is_ok());
        let hanging = if is_time { indent + TIME_LENGTH + 2 } else { indent + 2 };
        wrap_line(line, width, hanging.min(width / 2), &mut out);
    }
    out
}

fn wrap_line(line: &str, width: usize, hanging: usize, out: &mut String) {
    let (mut rest, mut indent) = (line, 0);
    while indent + rest.chars().count() > width {
        let limit = rest.char_indices().nth(width - indent + 1).map_or(rest.len(), |(at, _)| at);
        let begin = rest.len() - rest.trim_start().len();
        let Some(at) = rest[..limit].rfind(' ').filter(|at| *at > begin) else { break };
        out.extend(std::iter::repeat_n(' ', indent));
        out.push_str(rest[..at].trim_end());
        out.push('\n');
        (rest, indent) = (rest[at..].trim_start(), hanging);
    }
    out.extend(std::iter::repeat_n(' ', indent));
    out.push_str(rest);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use jiff::tz::Offset;

    use super::*;

    const TEXT: &str = "Pod a\n\nWhat happened (UTC)\n  2024-01-01 23:30:00.000  started\n\nWhat it waits for\n  c\n    \
                        until 2024-01-01 23:30:05.000, in 5s\n";

    #[test]
    fn times_are_converted_to_the_time_zone() {
        assert_eq!(in_time_zone(TEXT, &TimeZone::UTC), TEXT);
        let zone = TimeZone::fixed(Offset::constant(1));
        let expected = TEXT.replace("2024-01-01 23:", "2024-01-02 00:").replace("(UTC)", "(local time)");
        assert_eq!(in_time_zone(TEXT, &zone), expected);
    }

    #[test]
    fn long_lines_are_wrapped_below_their_text() {
        let text = "  2024-01-01 23:30:00.000  one two three four five six\n  short\n";
        let expected = format!("  2024-01-01 23:30:00.000  one two three\n{}four five six\n  short\n", " ".repeat(20));
        assert_eq!(wrapped(text, 40), expected);
        assert_eq!(wrapped(text, 10), text, "too narrow");
        let long = format!("  {}\n", "x".repeat(60));
        assert_eq!(wrapped(&long, 50), long, "a long path stays whole");
    }
}
