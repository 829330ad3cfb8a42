//! Where in a text a field stands: the line of `spec.containers[0].image`.
//!
//! The text is parsed once more, for its places only, when something has to be said about it. A field that is not there has the
//! line of what it should be in.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// The places of everything in the documents of a text.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<Place>);

#[derive(Debug)]
struct Place {
    line: u64,
    inside: Inside,
}

#[derive(Debug)]
enum Inside {
    Nothing,
    Fields(Vec<(String, Place)>),
    Items(Vec<Place>),
}

impl Lines {
    /// Of the documents of a text that could be parsed. A text for which there are no places has none.
    pub(super) fn of(text: &str) -> Self {
        if text.trim_start().starts_with('{')
            && let Some(lines) = Self::of_json(text)
        {
            return lines;
        }
        Self(places(text).unwrap_or_default())
    }

    /// JSON is YAML, but for several documents one after another.
    fn of_json(text: &str) -> Option<Self> {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
        let (mut found, mut begin) = (Vec::new(), 0);
        while let Some(document) = stream.next() {
            document.ok()?;
            let end = stream.byte_offset();
            let before = text[..begin].matches('\n').count() as u64;
            for mut place in places(&text[begin..end])? {
                place.shift(before);
                found.push(place);
            }
            begin = end;
        }
        Some(Self(found))
    }

    /// The line of a field in a document, both counted as people and machines do: lines from 1, documents from 0.
    pub(super) fn line(&self, document: usize, path: &str) -> Option<u64> {
        self.0.get(document).map(|place| place.find(path)).filter(|line| *line > 0)
    }
}

impl Place {
    fn shift(&mut self, by: u64) {
        self.line += by;
        match &mut self.inside {
            Inside::Nothing => {}
            Inside::Fields(fields) => fields.iter_mut().for_each(|(_, place)| place.shift(by)),
            Inside::Items(items) => items.iter_mut().for_each(|place| place.shift(by)),
        }
    }

    /// As far down the path as there is something.
    fn find(&self, path: &str) -> u64 {
        let path = path.strip_prefix('.').unwrap_or(path);
        let below = match &self.inside {
            Inside::Nothing => None,
            Inside::Items(items) => index(path).and_then(|(index, rest)| Some((items.get(index)?, rest))),
            Inside::Fields(fields) => {
                let named = fields.iter().filter_map(|(name, place)| Some((name.len(), place, rest(path, name)?)));
                // Names may have dots in them: the longest that fits is meant.
                named.max_by_key(|(length, ..)| *length).map(|(_, place, rest)| (place, rest))
            }
        };
        below.map_or(self.line, |(place, rest)| place.find(rest))
    }
}

/// What follows this name in a path that begins with it, plain or as `["name"]`.
fn rest<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let quoted = format!("[{name:?}]");
    let rest = path.strip_prefix(name).or_else(|| path.strip_prefix(quoted.as_str()))?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// `[3].rest`
fn index(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

fn places(text: &str) -> Option<Vec<Place>> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    serde_saphyr::from_multiple_with_options::<Place>(text, options).ok()
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Spanned { value: inside, referenced, .. } = Spanned::<Inside>::deserialize(from)?;
        Ok(Self { line: referenced.line(), inside })
    }
}

impl<'de> Deserialize<'de> for Inside {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Look)
    }
}

struct Look;

macro_rules! nothing_inside {
    ($($visit:ident($type:ty)),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Inside, E> {
            Ok(Inside::Nothing)
        })+
    };
}

impl<'de> Visitor<'de> for Look {
    type Value = Inside;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    nothing_inside!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str));

    fn visit_unit<E>(self) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }

    fn visit_none<E>(self) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Inside, D::Error> {
        from.deserialize_any(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Inside, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element()? {
            found.push(item);
        }
        Ok(Inside::Items(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Inside, A::Error> {
        let mut found = Vec::new();
        while let Some(name) = fields.next_key::<Spanned<String>>()? {
            let mut place: Place = fields.next_value()?;
            // A field is where its name is; what it holds may begin on the next line.
            place.line = name.referenced.line();
            found.push((name.value, place));
        }
        Ok(Inside::Fields(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_line() {
        let text = "# one\n---\n# two\napiVersion: v1\nmetadata:\n  labels:\n    a.b/c: x\n    \"q r\": y\nspec:\n  containers:\n  - name: a\n    ports:\n    - containerPort: 1\n  -\n    name: b\n  base: &b {x: 1}\n  use: *b\n---\nkind: Pod\n";
        let lines = Lines::of(text);
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
    fn json_has_lines_too() {
        let text = "{\n\t\"kind\": \"Pod\",\n\t\"spec\": {\n\t\t\"containers\": [\n\t\t\t{\"name\": \"a\\tb\\u0041\"}]}}\n\n{\n\"kind\": 1}";
        let lines = Lines::of(text);
        assert_eq!(lines.line(0, "spec.containers[0].name"), Some(5));
        assert_eq!(lines.line(1, "kind"), Some(8));
        assert_eq!(Lines::of("{broken").line(0, "kind"), None);
    }
}
