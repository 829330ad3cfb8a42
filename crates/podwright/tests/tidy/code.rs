//! Rust text without its comments and literals, so that a word in a sentence is not taken for code.

/// The code alone: comments, strings and character literals become blanks, lines stay lines.
pub(crate) fn of(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = skipped(rest, out.chars().next_back());
        let (head, tail) = rest.split_at(length.unwrap_or(c.len_utf8()));
        match length {
            Some(_) => out.extend(head.chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
            None => out.push(c),
        }
        rest = tail;
    }
    out
}

/// The length of the comment or literal that begins here, if one does.
fn skipped(text: &str, before: Option<char>) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if text.starts_with('"') {
        return Some(string(text));
    }
    if text.starts_with('\'') {
        return character(text);
    }
    let raw = text.strip_prefix('r').filter(|_| !before.is_some_and(is_word))?;
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let end = format!("\"{}", "#".repeat(hashes));
    let body = raw[hashes..].strip_prefix('"')?;
    Some(body.find(&end).map_or(text.len(), |at| 1 + hashes + 1 + at + end.len()))
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn string(text: &str) -> usize {
    let mut escaped = true; // the opening quote closes nothing
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// A character literal; a lifetime is none.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        return text[3..].find('\'').map(|at| at + 4);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The word stands alone in the text.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The path begins here: it is not the tail of another one.
pub(crate) fn has_absolute_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| is_word(c) || matches!(c, '.' | '/' | '-' | '}' | '>' | '~' | '*'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        for (text, left) in [
            ("a // b \" c\nd", "a \nd"),
            ("a /* b /* c */ d */ e", "a  e"),
            (r#"f("b \" c") d"#, "f() d"),
            (r##"f(r#"b " c"#) d"##, "f() d"),
            ("f('x', '\\'', '\"', 'ü') d", "f(, , , ) d"),
            ("fn f<'a>(x: &'a str) {} // b", "fn f<'a>(x: &'a str) {} "),
            ("for_r\"b\"", "for_r"),
        ] {
            let squeeze = |s: &str| s.chars().filter(|c| *c != ' ').collect::<String>();
            assert_eq!(squeeze(&of(text)), squeeze(left), "{text}");
            assert_eq!(of(text).lines().count(), text.lines().count(), "{text}");
        }
    }

    #[test]
    fn words_and_paths_stand_alone() {
        assert!(has_word("x unsafe{", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe") && !has_word("is_unsafe", "unsafe"));
        assert!(has_absolute_path("see /srv/x", "/srv/") && has_absolute_path("\"/srv/x\"", "/srv/"));
        assert!(!has_absolute_path("a/srv/x", "/srv/") && !has_absolute_path("$DIR/../srv/x", "/srv/"));
    }
}
