//! `$(NAME)` in values, commands and subPathExpr.
//!
//! `$(NAME)` becomes the variable's value, or stays as it is written when there is no such variable; `$$` is one dollar;
//! any other dollar stands for itself.

/// Replaces references; an unknown name stays as written.
pub fn expand<'v>(text: &str, mut lookup: impl FnMut(&str) -> Option<&'v str>) -> String {
    walk(text, |name, out| match lookup(name) {
        Some(value) => out.push_str(value),
        None => {
            out.push_str("$(");
            out.push_str(name);
            out.push(')');
        }
    })
}

/// Replaces references; an unknown name is an error that names it (Go kubelet: ExpandContainerVolumeMounts).
pub fn expand_strict<'v>(text: &str, mut lookup: impl FnMut(&str) -> Option<&'v str>) -> Result<String, String> {
    let mut missing = Vec::new();
    let expanded = walk(text, |name, out| match lookup(name) {
        Some(value) => out.push_str(value),
        None => missing.push(name.to_owned()),
    });
    if missing.is_empty() { Ok(expanded) } else { Err(format!("missing value for {}", missing.join(", "))) }
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
    fn references_are_replaced_and_everything_else_stays() {
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
    fn strict_expansion_names_what_is_missing() {
        let vars = |name: &str| (name == "A").then_some("1");
        assert_eq!(expand_strict("$(A)/x", vars), Ok("1/x".into()));
        assert_eq!(expand_strict("$(B)/$(C)", vars), Err("missing value for B, C".into()));
    }
}
