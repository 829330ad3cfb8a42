//! Lists and maps of a bounded number of entries: an empty string has 3 bytes in JSON and 24 in memory, a map entry more.
//! Go writes empty ones as `null`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(List)
}

pub(super) fn map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    deserializer.deserialize_any(Map(PhantomData))
}

/// The keys of a map whose values mean nothing.
pub(super) fn keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let map = deserializer.deserialize_any(Map::<IgnoredAny>(PhantomData))?;
    Ok(map.into_keys().collect())
}

struct List;

impl<'de> Visitor<'de> for List {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(vec![])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut list = vec![];
        while let Some(element) = from.next_element()? {
            check(list.len())?;
            list.push(element);
        }
        Ok(list)
    }
}

struct Map<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Map<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = from.next_entry()? {
            check(map.len())?;
            map.insert(key, value);
        }
        Ok(map)
    }
}

fn check<E: Error>(count: usize) -> Result<(), E> {
    if count < ENTRIES_MAX { Ok(()) } else { Err(E::custom(format_args!("more than {ENTRIES_MAX} entries"))) }
}

/// Entries of one list or map; real images have some dozen.
const ENTRIES_MAX: usize = 10_000;
