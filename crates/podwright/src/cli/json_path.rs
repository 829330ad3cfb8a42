//! The JSON paths of kubectl's `-o jsonpath`, `-o custom-columns` and `--sort-by`: fields, indexes, `[*]`, literals and ranges.

use std::str::FromStr;

use serde_json::Value;

/// A path like `.metadata.name` or `.items[*].status.phase`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    Every,
}

/// A template like `{range .items[*]}{.metadata.name}{"\n"}{end}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonPathTemplate(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(JsonPath),
    Range(JsonPath, Vec<Part>),
}

/// Why a path or template is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonPathError {
    #[error("a JSON path must begin with a dot, such as .metadata.name, and not be {path:?}")]
    Begin { path: String },
    #[error("{step:?} in a JSON path is not supported: write .field, [0] or [*]")]
    Step { step: String },
    #[error("a brace is not closed")]
    Brace,
    #[error("{{range}} and {{end}} do not match")]
    Range,
    #[error("it must be NAME:PATH,NAME:PATH")]
    Columns,
}

impl FromStr for JsonPath {
    type Err = JsonPathError;

    /// Braces around the path may be omitted.
    fn from_str(text: &str) -> Result<Self, JsonPathError> {
        let path = text.trim().trim_matches(['\'', '"']);
        let path = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path).trim();
        let path = path.strip_prefix(['$', '@']).unwrap_or(path);
        if !path.starts_with(['.', '[']) {
            return Err(JsonPathError::Begin { path: path.to_owned() });
        }
        let mut steps = vec![];
        for part in fields(path) {
            steps.extend(part_steps(&part)?);
        }
        Ok(Self(steps))
    }
}

/// The parts between dots; a dot after a backslash, as in `.metadata.labels.kubernetes\.io/name`, is a letter.
fn fields(path: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for letter in path.chars() {
        match letter {
            '\\' if !escaped => escaped = true,
            '.' if !escaped => parts.push(String::new()),
            letter => {
                escaped = false;
                parts.last_mut().expect("never empty").push(letter);
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// `name`, `name[0]`, `name[*]` or `['name']`.
fn part_steps(part: &str) -> Result<Vec<Step>, JsonPathError> {
    let unsupported = || JsonPathError::Step { step: part.to_owned() };
    let (name, mut rest) = part.find('[').map_or((part, ""), |at| part.split_at(at));
    let mut steps = vec![];
    match name {
        "" => {}
        "*" => steps.push(Step::Every),
        name => steps.push(Step::Field(name.to_owned())),
    }
    while let Some(inside) = rest.strip_prefix('[') {
        let (index, after) = inside.split_once(']').ok_or_else(unsupported)?;
        let quoted = index.strip_prefix('\'').and_then(|name| name.strip_suffix('\''));
        steps.push(match (index, quoted) {
            ("*", _) => Step::Every,
            (_, Some(name)) => Step::Field(name.to_owned()),
            (index, None) => Step::Index(index.parse().map_err(|_| unsupported())?),
        });
        rest = after;
    }
    if rest.is_empty() { Ok(steps) } else { Err(unsupported()) }
}

impl JsonPath {
    /// All values at this path; missing fields have none.
    pub(crate) fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        self.0.iter().fold(vec![value], |values, step| values.into_iter().flat_map(|value| step.apply(value)).collect())
    }

    /// The values as text, separated by spaces; empty if there are none.
    pub(crate) fn text(&self, value: &Value) -> String {
        self.find(value).into_iter().map(text).collect::<Vec<_>>().join(" ")
    }
}

impl Step {
    fn apply<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match (self, value) {
            (Self::Field(name), value) => value.get(name).into_iter().collect(),
            (Self::Index(index), value) => value.get(index).into_iter().collect(),
            (Self::Every, Value::Array(items)) => items.iter().collect(),
            (Self::Every, Value::Object(fields)) => fields.values().collect(),
            (Self::Every, _) => vec![],
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

impl FromStr for JsonPathTemplate {
    type Err = JsonPathError;

    fn from_str(template: &str) -> Result<Self, JsonPathError> {
        // Open ranges, the innermost last; the first is the whole template.
        let mut open: Vec<(Option<JsonPath>, Vec<Part>)> = vec![(None, vec![])];
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let (inside, after) = split_at_brace(after).ok_or(JsonPathError::Brace)?;
            let parts = &mut open.last_mut().ok_or(JsonPathError::Range)?.1;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            match inside.trim() {
                "end" => {
                    let (path, parts) = open.pop().ok_or(JsonPathError::Range)?;
                    let range = Part::Range(path.ok_or(JsonPathError::Range)?, parts);
                    open.last_mut().ok_or(JsonPathError::Range)?.1.push(range);
                }
                inside if inside.starts_with("range ") => open.push((Some(inside[6..].parse()?), vec![])),
                inside if inside.starts_with('"') => parts.push(Part::Text(unescape(inside.trim_matches('"')))),
                path => parts.push(Part::Path(path.parse()?)),
            }
            rest = after;
        }
        match <[_; 1]>::try_from(open) {
            Ok([(_, mut parts)]) => {
                if !rest.is_empty() {
                    parts.push(Part::Text(rest.to_owned()));
                }
                Ok(Self(parts))
            }
            Err(_) => Err(JsonPathError::Range),
        }
    }
}

/// Splits at the closing brace; one in quotes is a letter.
fn split_at_brace(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    let end = text.char_indices().find(|(_, letter)| {
        quoted ^= *letter == '"';
        *letter == '}' && !quoted
    })?;
    Some((&text[..end.0], &text[end.0 + 1..]))
}

fn unescape(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t")
}

impl JsonPathTemplate {
    /// The text for this object.
    pub(crate) fn render(&self, value: &Value) -> String {
        render(&self.0, value)
    }
}

fn render(parts: &[Part], value: &Value) -> String {
    let one = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(path) => path.text(value),
        Part::Range(path, inner) => path.find(value).into_iter().map(|item| render(inner, item)).collect(),
    };
    parts.iter().map(one).collect()
}

/// The columns of `-o custom-columns=NAME:PATH,…`.
pub(crate) fn parse_columns(text: &str) -> Result<Vec<(String, JsonPath)>, JsonPathError> {
    let column = |column: &str| {
        let (name, path) = column.split_once(':').ok_or(JsonPathError::Columns)?;
        Ok((name.to_owned(), path.parse()?))
    };
    text.split(',').map(column).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_are_those_of_kubectl() {
        let list = json!({"items": [
            {"metadata": {"name": "a", "labels": {"x.io/y": "1"}}, "status": {"phase": "Running", "n": [7, 8]}},
            {"metadata": {"name": "b"}, "status": {"phase": "Pending"}}]});
        for (template, expected) in [
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[1].status.phase}", "Pending"),
            ("names: {.items[0].metadata['name']}!", "names: a!"),
            ("{.items[0].metadata.labels.x\\.io/y}", "1"),
            ("{.items[0].status.n[1]}", "8"),
            (r#"{range .items[*]}{.metadata.name}{"\t"}{.status.phase}{"\n"}{end}"#, "a\tRunning\nb\tPending\n"),
            ("{.no.such.field}", ""),
            ("{$.items[0].metadata.name}", "a"),
        ] {
            let parsed: JsonPathTemplate = template.parse().unwrap_or_else(|e| panic!("{template}: {e}"));
            assert_eq!(parsed.render(&list), expected, "{template}");
        }
        for invalid in ["{.a", "{range .a}{.b}", "{end}", "{a}", "{.a[?(@.b)]}", "{.a[x]}"] {
            assert!(invalid.parse::<JsonPathTemplate>().is_err(), "{invalid}");
        }
    }
}
