//! Label and field selectors in the API server's syntax.

use std::collections::BTreeMap;

use crate::status_error::StatusError;

/// The selectors of a list or watch; all terms must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Selector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct LabelRequirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
struct FieldRequirement {
    name: String,
    value: String,
    equal: bool,
}

#[derive(Debug, thiserror::Error)]
enum SelectorError {
    #[error("invalid field selector {term:?}: write field=value")]
    Field { term: String },
    #[error(
        "invalid label selector {term:?}: write key, !key, key=value, key!=value, key in (a, b) or key notin (a, b)"
    )]
    Label { term: String },
    #[error("invalid label selector {text:?}: unbalanced parentheses")]
    Parentheses { text: String },
}

impl From<SelectorError> for StatusError {
    fn from(error: SelectorError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl Selector {
    /// Parses both selectors; `known` lists the supported fields.
    pub(super) fn parse(labels: Option<&str>, fields: Option<&str>, known: &[&str]) -> Result<Self, StatusError> {
        let labels = labels.map(parse_labels).transpose()?.unwrap_or_default();
        let fields = fields.map(parse_fields).transpose()?.unwrap_or_default();
        if let Some(field) = fields.iter().find(|field| !known.contains(&field.name.as_str())) {
            let message = format!("field label not supported: {}: use one of {}", field.name, known.join(", "));
            return Err(StatusError::bad_request(message));
        }
        Ok(Self { labels, fields })
    }

    pub(super) fn matches<'a>(
        &self,
        labels: Option<&BTreeMap<String, String>>,
        field: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let label = |key: &str| labels.and_then(|labels| labels.get(key));
        let met = |r: &LabelRequirement| match &r.operator {
            Operator::Exists => label(&r.key).is_some(),
            Operator::Absent => label(&r.key).is_none(),
            Operator::In(values) => label(&r.key).is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => label(&r.key).is_none_or(|value| !values.contains(value)),
        };
        let fits = |f: &FieldRequirement| (field(&f.name).unwrap_or_default() == f.value) == f.equal;
        self.labels.iter().all(met) && self.fields.iter().all(fits)
    }
}

fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, SelectorError> {
    let mut fields = Vec::new();
    for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let split = term.split_once("!=").map(|(name, value)| (name, value, false));
        let split = split.or_else(|| term.split_once("==").or_else(|| term.split_once('=')).map(|(n, v)| (n, v, true)));
        let (name, value, equal) = split.ok_or_else(|| SelectorError::Field { term: term.into() })?;
        fields.push(FieldRequirement { name: name.trim().into(), value: value.trim().into(), equal });
    }
    Ok(fields)
}

fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, SelectorError> {
    let terms = terms(text)?;
    terms.iter().map(|term| term.trim()).filter(|term| !term.is_empty()).map(parse_label).collect()
}

/// Splits at the commas outside of parentheses.
fn terms(text: &str) -> Result<Vec<&str>, SelectorError> {
    let (mut terms, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(SelectorError::Parentheses { text: text.into() });
        }
    }
    if depth != 0 {
        return Err(SelectorError::Parentheses { text: text.into() });
    }
    terms.push(&text[start..]);
    Ok(terms)
}

fn parse_label(term: &str) -> Result<LabelRequirement, SelectorError> {
    let wrong = || SelectorError::Label { term: term.into() };
    let (key, operator) = if let Some((key, value)) = term.split_once("!=") {
        (key, Operator::NotIn(vec![value.trim().into()]))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key, Operator::In(vec![value.trim().into()]))
    } else if let Some((head, list)) = term.split_once('(') {
        let list = list.trim_end().strip_suffix(')').ok_or_else(wrong)?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        match head.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => (key, Operator::In(values)),
            Some((key, "notin")) => (key, Operator::NotIn(values)),
            _ => return Err(wrong()),
        }
    } else if let Some(key) = term.strip_prefix('!') {
        (key, Operator::Absent)
    } else {
        (term, Operator::Exists)
    };
    let key = key.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let values: &[String] = match &operator {
        Operator::In(values) | Operator::NotIn(values) => values,
        _ => &[],
    };
    if key.is_empty() || !key.chars().all(plain) || !values.iter().all(|value| value.chars().all(plain)) {
        return Err(wrong());
    }
    Ok(LabelRequirement { key: key.into(), operator })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Selector::parse(Some(selector), None, &[]).unwrap().matches(Some(&labels), |_| None)
    }

    #[test]
    fn label_selectors_match_as_in_an_api_server() {
        let own = [("app", "web"), ("tier", "a")];
        for fits in [
            "",
            "app",
            "app=web",
            "app==web",
            "app!=db",
            "!other",
            "app in (db, web)",
            "tier notin (b),app",
            "other!=x",
        ] {
            assert!(labels(fits, &own), "{fits}");
        }
        for not in ["other", "app=db", "app!=web", "!app", "app in (db)", "tier notin (a,b)", "app=web,tier=b"] {
            assert!(!labels(not, &own), "{not}");
        }
        for wrong in ["app in web", "app in (a", "a=b=c", "app)(", "a b", "=", "app in ((a))", "app~x"] {
            assert!(Selector::parse(Some(wrong), None, &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_supported_fields_can_be_selected() {
        let field = |name: &str| (name == "status.phase").then_some("Running");
        let matches = |text: &str| {
            Selector::parse(None, Some(text), &["status.phase", "metadata.name"]).unwrap().matches(None, field)
        };
        assert!(matches("status.phase=Running") && matches("status.phase!=Failed,metadata.name=") && matches(""));
        assert!(!matches("status.phase=Failed") && !matches("metadata.name=x"));
        assert!(Selector::parse(None, Some("spec.hostNetwork=true"), &["status.phase"]).is_err());
        assert!(Selector::parse(None, Some("phase"), &["phase"]).is_err());
    }
}
