//! Output for users: tables and ages like kubectl's, with colours on a terminal.
//!
//! Messages come from containers, registries and runtimes: control characters are removed from them.

use std::io::IsTerminal;

use jiff::Timestamp;

pub(crate) mod amounts;
pub(crate) mod describe;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod pods;

mod describe_container;
mod hints;
mod shortage;

/// Colours by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Running or completed as intended.
    Good,
    /// In progress.
    Busy,
    /// Needs attention.
    Bad,
}

/// Writes colours, or plain text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Colours on a terminal, unless `NO_COLOR` is set or `TERM` is unset or dumb.
    pub(crate) fn for_stdout() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { on: std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb }
    }

    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self { on: false }
    }

    /// The text in this colour.
    pub(crate) fn colour(self, text: &str, colour: Option<Colour>) -> String {
        let code = match colour {
            Some(Colour::Good) => "32",
            Some(Colour::Busy) => "33",
            Some(Colour::Bad) => "31",
            None => return text.to_owned(),
        };
        self.escape(code, text)
    }

    /// Prints lines without indentation in bold.
    pub(crate) fn headings(self, text: &str) -> String {
        let paint = |line: &str| match line.starts_with(' ') || line.is_empty() {
            true => line.to_owned(),
            false => self.escape("1", line),
        };
        text.lines().map(|line| paint(line) + "\n").collect()
    }

    fn escape(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A table with three spaces between its columns.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    rows: Vec<Vec<(String, Option<Colour>)>>,
}

impl TextTable {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|text| ((*text).to_owned(), None)).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<(String, Option<Colour>)>) {
        self.rows.push(cells);
    }

    pub(crate) fn render(&self, paint: Paint) -> String {
        let mut widths = vec![];
        self.widen(&mut widths);
        self.render_to(&widths, paint)
    }

    /// Increases the widths to what this table needs.
    pub(crate) fn widen(&self, widths: &mut Vec<usize>) {
        widths.resize(self.rows.iter().map(Vec::len).max().unwrap_or(0).max(widths.len()), 0);
        for row in &self.rows {
            for (width, (text, _)) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
    }

    pub(crate) fn render_to(&self, widths: &[usize], paint: Paint) -> String {
        let mut out = String::new();
        for row in &self.rows {
            for (column, (text, colour)) in row.iter().enumerate() {
                out.push_str(&paint.colour(text, *colour));
                if column + 1 < row.len() {
                    out.extend(std::iter::repeat_n(' ', widths[column] - text.chars().count() + 3));
                }
            }
            out.push('\n');
        }
        out
    }
}

/// A table that is printed in parts: later rows are aligned with the printed ones.
pub(crate) struct GrowingTable {
    paint: Paint,
    widths: Vec<usize>,
}

impl GrowingTable {
    pub(crate) fn new(paint: Paint) -> Self {
        Self { paint, widths: vec![] }
    }

    /// Renders more rows; the first part includes the header.
    pub(crate) fn more(&mut self, table: &TextTable) -> String {
        let first = self.widths.is_empty();
        if table.rows.len() < 2 {
            return String::new();
        }
        table.widen(&mut self.widths);
        let text = table.render_to(&self.widths, self.paint);
        if first { text } else { text.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default() }
    }
}

/// Seconds between two times; never negative.
pub(crate) fn seconds(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0)
}

/// A duration in the format of kubectl's ages.
pub(crate) fn age(seconds: u64) -> String {
    let (m, h, d) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let both = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => both(m, "m", seconds % 60, "s"),
        600..10_800 => format!("{m}m"),
        10_800..28_800 => both(h, "h", m % 60, "m"),
        28_800..172_800 => format!("{h}h"),
        172_800..691_200 => both(d, "d", h % 24, "h"),
        691_200..63_072_000 => format!("{d}d"),
        63_072_000..252_288_000 => both(d / 365, "y", d % 365, "d"),
        _ => format!("{}y", d / 365),
    }
}

/// The age at `now`.
pub(crate) fn age_at(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or("<unknown>".into(), |then| age(seconds(then, now)))
}

/// Text from other sources as one line, without characters that control a terminal.
pub(crate) fn plain(text: &str) -> String {
    let replace = |c: char| match c {
        '\n' | '\t' => ' ',
        // Bidirectional control characters can disguise the text.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.trim().chars().filter(|c| *c != '\r').map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_format_of_kubectl() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (1_000_000_000, "31y"),
        ] {
            assert_eq!(age(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn coloured_columns_are_aligned() {
        let mut table = TextTable::new(&["NAME", "STATUS", "AGE"]);
        table.row(vec![("web".into(), None), ("CrashLoopBackOff".into(), Some(Colour::Bad)), ("5s".into(), None)]);
        let text = "NAME   STATUS             AGE\nweb    CrashLoopBackOff   5s\n";
        assert_eq!(table.render(Paint::off()), text);
        assert_eq!(
            table.render(Paint { on: true }),
            text.replace("CrashLoopBackOff", "\x1b[31mCrashLoopBackOff\x1b[0m")
        );
    }

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(plain("a\x1b[2Jb\r\n\tc\u{202e}d"), "a\u{fffd}[2Jb  c\u{fffd}d");
    }

    #[test]
    fn lines_without_indentation_are_bold() {
        assert_eq!(Paint { on: true }.headings("a\n\n  b\n"), "\x1b[1ma\x1b[0m\n\n  b\n");
        assert_eq!(Paint::off().headings("a\n  b\n"), "a\n  b\n");
    }
}
