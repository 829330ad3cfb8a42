//! Every field of a type, as its decoder requests them.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

/// The paths of all fields of a type: `spec.containers[].name`.
pub(super) fn fields_of<'de, T: Deserialize<'de>>() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    T::deserialize(Walk { path: String::new(), found: &mut found }).expect("the walk returns the requested type");
    found
}

struct Walk<'a> {
    path: String,
    found: &'a mut BTreeSet<String>,
}

macro_rules! with {
    ($($method:ident => $visit:ident($value:expr)),+ $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit($value)
        })+
    };
}

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = Error;

    with!(
        deserialize_bool => visit_bool(false),
        deserialize_i32 => visit_i32(0),
        deserialize_i64 => visit_i64(0),
        deserialize_f64 => visit_f64(0.0),
    );

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(match self.path.as_str() {
            "apiVersion" => "v1",
            "kind" => "Pod",
            // A valid time, which also serves as any other text.
            _ => "2000-01-01T00:00:00Z",
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Once { path: format!("{}[]", self.path), found: self.found, over: false })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Once { path: format!("{}{{}}", self.path), found: self.found, over: false })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Each { path: self.path, found: self.found, rest: fields, now: "" })
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char str string bytes byte_buf unit unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

/// One item of a list, or one entry of a map.
struct Once<'a> {
    path: String,
    found: &'a mut BTreeSet<String>,
    over: bool,
}

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(None);
        }
        seed.deserialize(Walk { path: self.path.clone(), found: self.found }).map(Some)
    }
}

impl<'de> MapAccess<'de> for Once<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(None);
        }
        let key: StrDeserializer<'_, Error> = "key".into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(Walk { path: self.path.clone(), found: self.found })
    }
}

/// Every field of a struct.
struct Each<'a> {
    path: String,
    found: &'a mut BTreeSet<String>,
    rest: &'static [&'static str],
    now: &'static str,
}

impl<'de> MapAccess<'de> for Each<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((first, rest)) = self.rest.split_first() else { return Ok(None) };
        (self.now, self.rest) = (first, rest);
        let key: StrDeserializer<'_, Error> = self.now.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let path = if self.path.is_empty() { self.now.to_owned() } else { format!("{}.{}", self.path, self.now) };
        self.found.insert(path.clone());
        seed.deserialize(Walk { path, found: self.found })
    }
}
