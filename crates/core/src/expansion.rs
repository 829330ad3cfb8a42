//! `$(NAME)` in values, commands and `subPathExpr`: parsing, and expansion to a bounded size.
//!
//! `$(NAME)` becomes the variable's value, or stays as written if there is no such variable; `$$` becomes `$`; any other
//! dollar sign is kept. A variable may refer to earlier ones several times, so sizes can grow exponentially with the number of
//! variables: every result is bounded before it is built.

mod size;

pub(crate) use size::oversized_field;

/// The expanded environment of one container, the sum of its names and values, and as much for its command and arguments. The
/// kernel passes at most 2 MiB to a process by default (a quarter of the stack limit).
pub const EXPANDED_BYTES_MAX: usize = 1 << 20;

/// An expanded text that would exceed its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expands to more than {max} bytes")]
pub struct ExpansionTooLarge {
    /// The limit that applied to this text.
    pub max: usize,
}

/// A piece of an unexpanded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'t> {
    /// Kept as it is.
    Text(&'t str),
    /// The name in `$(NAME)`.
    Reference(&'t str),
}

/// Splits a text into literal parts and references.
pub fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    // Searched for only until it is known that no reference is closed: else many `$(` would take quadratic time.
    let mut has_closing = true;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find('$') else { return Some(Part::Text(std::mem::take(&mut rest))) };
        if at > 0 {
            let (before, tail) = rest.split_at(at);
            rest = tail;
            return Some(Part::Text(before));
        }
        let after = &rest[1..];
        if let Some(tail) = after.strip_prefix('$') {
            rest = tail;
            return Some(Part::Text("$"));
        }
        if let Some(inner) = after.strip_prefix('(').filter(|_| has_closing) {
            if let Some((name, tail)) = inner.split_once(')') {
                rest = tail;
                return Some(Part::Reference(name));
            }
            has_closing = false;
        }
        rest = after;
        Some(Part::Text("$"))
    })
}

/// Replaces references; an unknown name stays as written. The result has at most `max` bytes.
pub fn expand<'v>(
    text: &str,
    mut lookup: impl FnMut(&str) -> Option<&'v str>,
    max: usize,
) -> Result<String, ExpansionTooLarge> {
    let mut out = String::with_capacity(text.len().min(max));
    for part in parts(text) {
        let pieces = match part {
            Part::Text(text) => [text, "", ""],
            Part::Reference(name) => match lookup(name) {
                Some(value) => [value, "", ""],
                None => ["$(", name, ")"],
            },
        };
        for piece in pieces {
            if piece.len() > max - out.len() {
                return Err(ExpansionTooLarge { max });
            }
            out.push_str(piece);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_other_text_is_kept() {
        let vars = |name: &str| match name {
            "A" => Some("1"),
            "B" => Some("two"),
            "EMPTY" => Some(""),
            "SELF" => Some("$(A)"),
            _ => None,
        };
        let table = [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x-$(A)-$(B)-y", "x-1-two-y"),
            ("$(A)$(B)", "1two"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$(NOPE)", "$(NOPE)"),
            ("[$(EMPTY)]", "[]"),
            ("$(A", "$(A"),
            ("$A $", "$A $"),
            ("$(SELF)", "$(A)"),
            ("$()", "$()"),
            ("ü$(A)ß$", "ü1ß$"),
            ("$(A$(B)", "$(A$(B)"),
        ];
        for (input, expected) in table {
            assert_eq!(expand(input, vars, 100).as_deref(), Ok(expected), "{input}");
        }
    }

    #[test]
    fn the_result_is_bounded() {
        let value = "x".repeat(10);
        let vars = |_: &str| Some(value.as_str());
        assert_eq!(expand("$(A)$(A)", vars, 20).map(|text| text.len()), Ok(20));
        assert_eq!(expand("$(A)$(A)-", vars, 20), Err(ExpansionTooLarge { max: 20 }));
        assert_eq!(expand("abc", vars, 2), Err(ExpansionTooLarge { max: 2 }));
        assert_eq!(expand("", vars, 0), Ok(String::new()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a bound of the time taken")]
    fn many_unclosed_references_take_linear_time() {
        let text = "$(".repeat(1 << 19);
        let began = std::time::Instant::now();
        assert_eq!(expand(&text, |_| None, 1 << 20).map(|text| text.len()), Ok(1 << 20));
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
