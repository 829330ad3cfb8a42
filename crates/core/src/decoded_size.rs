//! The memory that a manifest takes when it is decoded, computed from its text without building anything.
//!
//! The types of Kubernetes' API hold all their fields inline: `{"name": "v"}` in a list of volumes takes kilobytes. A text that is
//! within the limit of its length may take a thousand times as much memory, and a pod must not end the agent.
//!
//! Counted are the untyped document and the typed lists, which exist at the same time. An API server stores at most 1.5 MiB for a
//! pod: about 20,000 variables with their managed fields.

use std::fmt;

use k8s_openapi::api::core::v1::{
    ContainerStatus, EnvFromSource, EnvVar, EphemeralContainer, Volume, VolumeProjection,
};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::model::{Container, Pod};

/// For all pods of one text: 14,000 variables, 4,000 volumes, or 1,500 pods of one container.
pub const DECODED_BYTES_MAX: usize = 16 << 20;

/// The size of one document. It is read from a text as any other type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedSize {
    bytes: usize,
    is_object: bool,
    largest: Option<LargeList>,
}

/// The list that takes the most memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LargeList {
    path: String,
    items: usize,
    bytes: usize,
}

/// A text that would take too much memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the manifest takes {} MiB of memory when decoded, more than the limit of {} MiB: {}",
    .bytes >> 20, DECODED_BYTES_MAX >> 20, advice(*.items, *.list_bytes)
)]
pub struct DecodedTooLarge {
    /// The list that takes the most memory; empty if there is no list.
    pub path: String,
    /// Items of this list.
    pub items: usize,
    /// Memory that this list would take.
    pub list_bytes: usize,
    /// Memory that the text would take.
    pub bytes: usize,
}

fn advice(items: usize, bytes: usize) -> String {
    match items {
        0 => "make it smaller".into(),
        items => format!("the {items} items of this list take {} MiB, use fewer", bytes >> 20),
    }
}

impl DecodedSize {
    /// Whether all documents of a text together are within [`DECODED_BYTES_MAX`].
    pub fn check(documents: &[Self]) -> Result<(), DecodedTooLarge> {
        let bytes = documents.iter().fold(0, |sum: usize, one| sum.saturating_add(one.bytes));
        if bytes <= DECODED_BYTES_MAX {
            return Ok(());
        }
        let largest = documents.iter().filter_map(|one| one.largest.as_ref()).max_by_key(|list| list.bytes);
        let (path, items, list_bytes) =
            largest.map_or((String::new(), 0, 0), |list| (list.path.clone(), list.items, list.bytes));
        Err(DecodedTooLarge { path, items, list_bytes, bytes })
    }

    fn of_bytes(bytes: usize) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Adds a part; `prefix` is where it is.
    fn add(&mut self, part: Self, prefix: impl FnOnce() -> String) {
        self.bytes = self.bytes.saturating_add(part.bytes);
        let Some(list) = part.largest else { return };
        if self.largest.as_ref().is_none_or(|known| known.bytes < list.bytes) {
            let mut path = prefix();
            if !list.path.is_empty() && !list.path.starts_with('[') && !path.is_empty() {
                path.push('.');
            }
            path.push_str(&list.path);
            self.largest = Some(LargeList { path, ..list });
        }
    }
}

impl<'de> Deserialize<'de> for DecodedSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Measure { field: "", depth: 0 }.deserialize(from)
    }
}

/// Measures one value.
#[derive(Clone, Copy)]
struct Measure<'f> {
    /// The field that has the value, or the list that it is in.
    field: &'f str,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = DecodedSize;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<DecodedSize, D::Error> {
        from.deserialize_any(self)
    }
}

macro_rules! without_memory {
    ($($visit:ident($type:ty)),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<DecodedSize, E> {
            Ok(DecodedSize::default())
        })+
    };
}

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = DecodedSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    without_memory!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64));

    fn visit_unit<E>(self) -> Result<DecodedSize, E> {
        Ok(DecodedSize::default())
    }

    fn visit_none<E>(self) -> Result<DecodedSize, E> {
        Ok(DecodedSize::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<DecodedSize, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_str<E>(self, text: &str) -> Result<DecodedSize, E> {
        Ok(DecodedSize::of_bytes(text_bytes(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<DecodedSize, A::Error> {
        let (mut size, mut count) = (DecodedSize::default(), 0);
        let typed = item_bytes(self.field, self.depth);
        while let Some(mut item) = items.next_element_seed(Self { depth: self.depth + 1, ..self })? {
            item.bytes = item.bytes.saturating_add(VALUE_BYTES + if item.is_object { typed } else { 0 });
            size.add(item, || format!("[{count}]"));
            count += 1;
        }
        let own = LargeList { path: String::new(), items: count, bytes: size.bytes };
        // A list with one large item is not to blame.
        if size.largest.as_ref().is_none_or(|inner| inner.bytes < size.bytes / 2) {
            size.largest = Some(own);
        }
        Ok(size)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<DecodedSize, A::Error> {
        let (mut size, mut count) = (DecodedSize { is_object: true, ..DecodedSize::default() }, 0usize);
        while let Some(name) = fields.next_key::<String>()? {
            let value = fields.next_value_seed(Measure { field: &name, depth: self.depth + 1 })?;
            size.bytes = size.bytes.saturating_add(text_bytes(&name));
            size.add(value, || name.clone());
            count += 1;
        }
        size.bytes = size.bytes.saturating_add(count.div_ceil(NODE_ENTRIES) * NODE_BYTES);
        Ok(size)
    }
}

/// With the bookkeeping of the allocator.
fn text_bytes(text: &str) -> usize {
    text.len().saturating_add(32)
}

/// The typed item of the list in a field. Most types are smaller than [`ITEM_BYTES`].
fn item_bytes(field: &str, depth: usize) -> usize {
    match field {
        // Of a document that is a list; keys of volumes are in fields of this name, too.
        "items" if depth == 1 => size_of::<Pod>(),
        "containers" | "initContainers" => size_of::<Container>(),
        "ephemeralContainers" => size_of::<EphemeralContainer>(),
        "containerStatuses" | "initContainerStatuses" | "ephemeralContainerStatuses" => size_of::<ContainerStatus>(),
        "volumes" => size_of::<Volume>(),
        "sources" => size_of::<VolumeProjection>(),
        "env" => size_of::<EnvVar>(),
        "envFrom" => size_of::<EnvFromSource>(),
        _ => ITEM_BYTES,
    }
}

const ITEM_BYTES: usize = 256;
/// An item in an untyped list.
const VALUE_BYTES: usize = size_of::<serde_json::Value>();
/// A node of a `BTreeMap` of untyped fields: 11 entries, of which at least half are used.
const NODE_BYTES: usize = 11 * (size_of::<String>() + VALUE_BYTES) + 32;
const NODE_ENTRIES: usize = 6;

#[cfg(test)]
mod tests;
