//! The line of a field in a manifest, by its path: `spec.containers[0].image`.
//!
//! The text is parsed a second time, for locations only, when there is an error or warning to report. A missing field has the
//! line of its parent.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// The locations of all fields in the documents of a text.
#[derive(Debug, Default)]
pub(super) struct FieldLines(Vec<FieldLocation>);

#[derive(Debug)]
struct FieldLocation {
    line: u64,
    children: Children,
}

#[derive(Debug)]
enum Children {
    None,
    Fields(Vec<(String, FieldLocation)>),
    Items(Vec<FieldLocation>),
}

impl FieldLines {
    /// Finds the fields of a text. A text that can't be parsed has none.
    pub(super) fn of(text: &str) -> Self {
        if text.trim_start().starts_with('{')
            && let Some(lines) = Self::of_json(text)
        {
            return lines;
        }
        Self(locations(text).unwrap_or_default())
    }

    /// JSON is YAML, except for several documents in sequence.
    fn of_json(text: &str) -> Option<Self> {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
        let (mut found, mut begin) = (Vec::new(), 0);
        while let Some(document) = stream.next() {
            document.ok()?;
            let end = stream.byte_offset();
            let before = text[..begin].matches('\n').count() as u64;
            for mut location in locations(&text[begin..end])? {
                location.shift(before);
                found.push(location);
            }
            begin = end;
        }
        Some(Self(found))
    }

    /// The line of a field in a document. Lines count from 1, documents from 0.
    pub(super) fn line(&self, document: usize, path: &str) -> Option<u64> {
        self.0.get(document).map(|location| location.find(path)).filter(|line| *line > 0)
    }
}

impl FieldLocation {
    fn shift(&mut self, by: u64) {
        self.line += by;
        match &mut self.children {
            Children::None => {}
            Children::Fields(fields) => fields.iter_mut().for_each(|(_, location)| location.shift(by)),
            Children::Items(items) => items.iter_mut().for_each(|location| location.shift(by)),
        }
    }

    /// The line of the deepest existing field on the path.
    fn find(&self, path: &str) -> u64 {
        let path = path.strip_prefix('.').unwrap_or(path);
        let below = match &self.children {
            Children::None => None,
            Children::Items(items) => index(path).and_then(|(index, rest)| Some((items.get(index)?, rest))),
            Children::Fields(fields) => {
                let named =
                    fields.iter().filter_map(|(name, location)| Some((name.len(), location, rest(path, name)?)));
                // Names may contain dots: the longest match is used.
                named.max_by_key(|(length, ..)| *length).map(|(_, location, rest)| (location, rest))
            }
        };
        below.map_or(self.line, |(location, rest)| location.find(rest))
    }
}

/// The rest of a path that begins with this name, plain or as `["name"]`.
fn rest<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let quoted = || path.starts_with("[\"").then(|| path.strip_prefix(format!("[{name:?}]").as_str())).flatten();
    let rest = path.strip_prefix(name).or_else(quoted)?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// `[3].rest`
fn index(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

fn locations(text: &str) -> Option<Vec<FieldLocation>> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    serde_saphyr::from_multiple_with_options::<FieldLocation>(text, options).ok()
}

impl<'de> Deserialize<'de> for FieldLocation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Spanned { value: children, referenced, .. } = Spanned::<Children>::deserialize(from)?;
        Ok(Self { line: referenced.line(), children })
    }
}

impl<'de> Deserialize<'de> for Children {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ChildrenVisitor)
    }
}

struct ChildrenVisitor;

macro_rules! no_children {
    ($($visit:ident($type:ty)),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Children, E> {
            Ok(Children::None)
        })+
    };
}

impl<'de> Visitor<'de> for ChildrenVisitor {
    type Value = Children;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    no_children!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str));

    fn visit_unit<E>(self) -> Result<Children, E> {
        Ok(Children::None)
    }

    fn visit_none<E>(self) -> Result<Children, E> {
        Ok(Children::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Children, D::Error> {
        from.deserialize_any(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Children, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element()? {
            found.push(item);
        }
        Ok(Children::Items(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Children, A::Error> {
        let mut found = Vec::new();
        while let Some(name) = fields.next_key::<Spanned<String>>()? {
            let mut location: FieldLocation = fields.next_value()?;
            // A field is on the line of its name; its value may begin on the next line.
            location.line = name.referenced.line();
            found.push((name.value, location));
        }
        Ok(Children::Fields(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_field_is_found_by_its_path() {
        let text = "# one\n---\n# two\napiVersion: v1\nmetadata:\n  labels:\n    a.b/c: x\n    \"q r\": y\nspec:\n  containers:\n  - name: a\n    ports:\n    - containerPort: 1\n  -\n    name: b\n  base: &b {x: 1}\n  use: *b\n---\nkind: Pod\n";
        let lines = FieldLines::of(text);
        for (path, line) in [
            ("apiVersion", 4),
            ("metadata.labels[\"a.b/c\"]", 7),
            ("metadata.labels.a.b/c", 7),
            ("metadata.labels[\"q r\"]", 8),
            ("metadata.name", 5),
            ("spec.containers[0].ports[0].containerPort", 13),
            ("spec.containers[0].image", 11),
            ("spec.containers[1].name", 15),
            ("spec.containers[7]", 10),
            ("spec.use.x", 17),
            ("nothing.of.this", 4),
        ] {
            assert_eq!(lines.line(0, path), Some(line), "{path}");
        }
        assert_eq!((lines.line(1, "kind"), lines.line(2, "kind")), (Some(19), None));
    }

    #[test]
    fn fields_of_json_documents_have_lines() {
        let text = "{\n\t\"kind\": \"Pod\",\n\t\"spec\": {\n\t\t\"containers\": [\n\t\t\t{\"name\": \"a\\tb\\u0041\"}]}}\n\n{\n\"kind\": 1}";
        let lines = FieldLines::of(text);
        assert_eq!(lines.line(0, "spec.containers[0].name"), Some(5));
        assert_eq!(lines.line(1, "kind"), Some(8));
        assert_eq!(FieldLines::of("{broken").line(0, "kind"), None);
    }
}
