//! Label and field selectors, as the API server reads them.

use std::collections::BTreeMap;

use super::failure::Failure;

/// What a list or watch is held to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    demand: Demand,
}

#[derive(Clone, Debug, PartialEq)]
enum Demand {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
struct Field {
    name: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Read both; `known` are the fields that may be asked for.
    pub(super) fn read(labels: Option<&str>, fields: Option<&str>, known: &[&str]) -> Result<Self, Failure> {
        let labels = labels.map(read_labels).transpose().map_err(Failure::bad_request)?.unwrap_or_default();
        let fields = fields.map(read_fields).transpose().map_err(Failure::bad_request)?.unwrap_or_default();
        if let Some(field) = fields.iter().find(|field| !known.contains(&field.name.as_str())) {
            let message = format!("field label not supported: {}: use one of {}", field.name, known.join(", "));
            return Err(Failure::bad_request(message));
        }
        Ok(Self { labels, fields })
    }

    pub(super) fn matches<'a>(
        &self,
        labels: Option<&BTreeMap<String, String>>,
        field: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let label = |key: &str| labels.and_then(|labels| labels.get(key));
        let met = |r: &Requirement| match &r.demand {
            Demand::Exists => label(&r.key).is_some(),
            Demand::Absent => label(&r.key).is_none(),
            Demand::In(values) => label(&r.key).is_some_and(|value| values.contains(value)),
            Demand::NotIn(values) => label(&r.key).is_none_or(|value| !values.contains(value)),
        };
        let fits = |f: &Field| (field(&f.name).unwrap_or_default() == f.value) == f.equal;
        self.labels.iter().all(met) && self.fields.iter().all(fits)
    }
}

fn read_fields(text: &str) -> Result<Vec<Field>, String> {
    let mut fields = Vec::new();
    for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let split = term.split_once("!=").map(|(name, value)| (name, value, false));
        let split = split.or_else(|| term.split_once("==").or_else(|| term.split_once('=')).map(|(n, v)| (n, v, true)));
        let (name, value, equal) =
            split.ok_or_else(|| format!("invalid field selector {term:?}: write field=value"))?;
        fields.push(Field { name: name.trim().into(), value: value.trim().into(), equal });
    }
    Ok(fields)
}

fn read_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let terms = terms(text)?;
    terms.iter().map(|term| term.trim()).filter(|term| !term.is_empty()).map(read_label).collect()
}

/// Between the commas that stand outside of parentheses.
fn terms(text: &str) -> Result<Vec<&str>, String> {
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
            return Err(format!("invalid label selector {text:?}: the parentheses don't fit"));
        }
    }
    if depth != 0 {
        return Err(format!("invalid label selector {text:?}: a parenthesis is open"));
    }
    terms.push(&text[start..]);
    Ok(terms)
}

fn read_label(term: &str) -> Result<Requirement, String> {
    let wrong = || {
        format!(
            "invalid label selector {term:?}: write key, !key, key=value, key!=value, key in (a, b) or key notin (a, b)"
        )
    };
    let (key, demand) = if let Some((key, value)) = term.split_once("!=") {
        (key, Demand::NotIn(vec![value.trim().into()]))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key, Demand::In(vec![value.trim().into()]))
    } else if let Some((head, list)) = term.split_once('(') {
        let list = list.trim_end().strip_suffix(')').ok_or_else(wrong)?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        match head.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => (key, Demand::In(values)),
            Some((key, "notin")) => (key, Demand::NotIn(values)),
            _ => return Err(wrong()),
        }
    } else if let Some(key) = term.strip_prefix('!') {
        (key, Demand::Absent)
    } else {
        (term, Demand::Exists)
    };
    let key = key.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let values: &[String] = match &demand {
        Demand::In(values) | Demand::NotIn(values) => values,
        _ => &[],
    };
    if key.is_empty() || !key.chars().all(plain) || !values.iter().all(|value| value.chars().all(plain)) {
        return Err(wrong());
    }
    Ok(Requirement { key: key.into(), demand })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Selector::read(Some(selector), None, &[]).unwrap().matches(Some(&labels), |_| None)
    }

    #[test]
    fn labels_are_selected_as_by_an_api_server() {
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
            assert!(Selector::read(Some(wrong), None, &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_known_fields_are_selected_by() {
        let field = |name: &str| (name == "status.phase").then_some("Running");
        let matches = |text: &str| {
            Selector::read(None, Some(text), &["status.phase", "metadata.name"]).unwrap().matches(None, field)
        };
        assert!(matches("status.phase=Running") && matches("status.phase!=Failed,metadata.name=") && matches(""));
        assert!(!matches("status.phase=Failed") && !matches("metadata.name=x"));
        assert!(Selector::read(None, Some("spec.hostNetwork=true"), &["status.phase"]).is_err());
        assert!(Selector::read(None, Some("phase"), &["phase"]).is_err());
    }
}
