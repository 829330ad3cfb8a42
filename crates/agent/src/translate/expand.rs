//! Expansion of `$(NAME)` in values, commands and `subPathExpr`.
//!
//! `$(NAME)` becomes the variable's value, or stays as written if there is no such variable; `$$` becomes `$`; any other
//! dollar sign is kept.

use super::MountError;

/// Replaces references; an unknown name stays as written.
pub(crate) fn expand<'v>(text: &str, mut lookup: impl FnMut(&str) -> Option<&'v str>) -> String {
    walk(text, |name, out| match lookup(name) {
        Some(value) => out.push_str(value),
        None => {
            out.push_str("$(");
            out.push_str(name);
            out.push(')');
        }
    })
}

/// Replaces references; unknown names are an error (Go kubelet: `ExpandContainerVolumeMounts`).
pub(super) fn expand_strict<'v>(
    text: &str,
    mut lookup: impl FnMut(&str) -> Option<&'v str>,
) -> Result<String, MountError> {
    let mut missing = Vec::new();
    let expanded = walk(text, |name, out| match lookup(name) {
        Some(value) => out.push_str(value),
        None => missing.push(name.to_owned()),
    });
    if missing.is_empty() { Ok(expanded) } else { Err(MountError::MissingVariables(missing)) }
}

fn walk(text: &str, mut reference: impl FnMut(&str, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            tail
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            reference(name, &mut out);
            tail
        } else {
            out.push('$');
            after
        };
    }
    out.push_str(rest);
    out
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
            assert_eq!(expand(input, vars), expected, "{input}");
        }
    }

    #[test]
    fn strict_expansion_reports_missing_variables() {
        let vars = |name: &str| (name == "A").then_some("1");
        assert_eq!(expand_strict("$(A)/x", vars), Ok("1/x".into()));
        assert_eq!(expand_strict("$(B)/$(C)", vars), Err(MountError::MissingVariables(vec!["B".into(), "C".into()])));
    }
}
