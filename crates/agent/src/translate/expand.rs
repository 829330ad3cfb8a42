//! Expansion of `subPathExpr`, where unknown names are an error.

use podwright_core::expansion::{Part, parts};

use super::MountError;

/// Replaces references; unknown names are an error (Go kubelet: `ExpandContainerVolumeMounts`).
pub(super) fn expand_strict<'v>(
    text: &str,
    mut lookup: impl FnMut(&str) -> Option<&'v str>,
) -> Result<String, MountError> {
    let (mut expanded, mut missing) = (String::new(), Vec::new());
    for part in parts(text) {
        let piece = match part {
            Part::Text(text) => text,
            Part::Reference(name) => lookup(name).unwrap_or_else(|| {
                missing.push(name.to_owned());
                ""
            }),
        };
        if expanded.len() + piece.len() > PATH_BYTES_MAX {
            return Err(MountError::SubPathTooLong);
        }
        expanded.push_str(piece);
    }
    if missing.is_empty() { Ok(expanded) } else { Err(MountError::MissingVariables(missing)) }
}

/// Linux: PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_expansion_reports_missing_variables() {
        let vars = |name: &str| (name == "A").then_some("1");
        assert_eq!(expand_strict("$(A)/x", vars), Ok("1/x".into()));
        assert_eq!(expand_strict("$(B)/$(C)", vars), Err(MountError::MissingVariables(vec!["B".into(), "C".into()])));
    }

    #[test]
    fn an_expanded_path_is_bounded() {
        let value = "x".repeat(1000);
        assert_eq!(expand_strict("$(A)$(A)$(A)$(A)$(A)", |_| Some(&value)), Err(MountError::SubPathTooLong));
    }
}
