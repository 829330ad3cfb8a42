//! What people read: tables as kubectl prints them, ages, colours where there is a terminal.
//!
//! Messages come from containers, registries and runtimes: whatever would steer a terminal is taken out of them.

use std::io::IsTerminal;

use jiff::Timestamp;

pub(crate) mod describe;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod pods;

mod hints;
mod parts;

/// A colour with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// As it should be.
    Good,
    /// On its way.
    Busy,
    /// Somebody has to look.
    Bad,
}

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Colours only on a terminal whose owner hasn't said no.
    pub(crate) fn for_stdout() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { on: std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb }
    }

    /// Text without colours.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self { on: false }
    }

    fn colour(self, text: &str, colour: Option<Colour>) -> String {
        let code = match colour {
            Some(Colour::Good) => "32",
            Some(Colour::Busy) => "33",
            Some(Colour::Bad) => "31",
            None => return text.to_owned(),
        };
        self.with(code, text)
    }

    /// Lines without indent are headings.
    pub(crate) fn headings(self, text: &str) -> String {
        let paint = |line: &str| match line.starts_with(' ') || line.is_empty() {
            true => line.to_owned(),
            false => self.with("1", line),
        };
        text.lines().map(|line| paint(line) + "\n").collect()
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A table: columns as wide as they must be, three spaces between.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(String, Option<Colour>)>>,
}

impl Table {
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

    /// Make these columns as wide as this table needs them.
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

/// A table that grows: what comes later lines up with what was printed.
pub(crate) struct Sheet {
    paint: Paint,
    widths: Vec<usize>,
}

impl Sheet {
    /// Nothing is printed yet.
    pub(crate) fn new(paint: Paint) -> Self {
        Self { paint, widths: vec![] }
    }

    /// More lines, under the head if they are the first.
    pub(crate) fn more(&mut self, table: &Table) -> String {
        let first = self.widths.is_empty();
        if table.rows.len() < 2 {
            return String::new();
        }
        table.widen(&mut self.widths);
        let text = table.render_to(&self.widths, self.paint);
        if first { text } else { text.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default() }
    }
}

/// Seconds between two moments; never negative.
pub(crate) fn seconds(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0)
}

/// A duration as kubectl shows ages: two digits' worth of it.
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

/// The age of something, as of now.
pub(crate) fn age_at(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or("<unknown>".into(), |then| age(seconds(then, now)))
}

/// Foreign words on one line, without anything that would steer a terminal.
pub(crate) fn plain(text: &str) -> String {
    let harmless = |c: char| match c {
        '\n' | '\t' => ' ',
        // Direction marks can make a line read otherwise than it is.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.trim().chars().filter(|c| *c != '\r').map(harmless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectls() {
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
    fn columns_line_up_whatever_their_colour() {
        let mut table = Table::new(&["NAME", "STATUS", "AGE"]);
        table.row(vec![("web".into(), None), ("CrashLoopBackOff".into(), Some(Colour::Bad)), ("5s".into(), None)]);
        let text = "NAME   STATUS             AGE\nweb    CrashLoopBackOff   5s\n";
        assert_eq!(table.render(Paint::off()), text);
        assert_eq!(
            table.render(Paint { on: true }),
            text.replace("CrashLoopBackOff", "\x1b[31mCrashLoopBackOff\x1b[0m")
        );
    }

    #[test]
    fn foreign_words_cannot_steer_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\r\n\tc\u{202e}d"), "a\u{fffd}[2Jb  c\u{fffd}d");
    }

    #[test]
    fn headings_are_what_has_no_indent() {
        assert_eq!(Paint { on: true }.headings("a\n\n  b\n"), "\x1b[1ma\x1b[0m\n\n  b\n");
        assert_eq!(Paint::off().headings("a\n  b\n"), "a\n  b\n");
    }
}
