//! The resource argument of a command, as kubectl accepts it: `pods`, `pods NAME …` or `pod/NAME`.

use std::ffi::OsStr;
use std::marker::PhantomData;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error, ValueEnum};

/// A resource type, and the name if it was given as `TYPE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target<K> {
    pub(crate) kind: K,
    name: Option<String>,
}

impl<K> Target<K> {
    /// The name in the target, and the other arguments.
    pub(super) fn names<'a>(&'a self, more: &'a [String]) -> Vec<&'a str> {
        self.name.iter().chain(more).map(String::as_str).collect()
    }
}

/// Parses a [`Target`]; help and completion show the resource types.
#[derive(Clone)]
pub(super) struct TargetParser<K>(PhantomData<fn() -> K>);

impl<K> Default for TargetParser<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K: ValueEnum + Clone + Send + Sync + 'static> TypedValueParser for TargetParser<K> {
    type Value = Target<K>;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, Error> {
        let (kind, name) = match value.to_str().and_then(|text| text.split_once('/')) {
            Some((kind, name)) if !name.is_empty() => (OsStr::new(kind), Some(name.to_owned())),
            _ => (value, None),
        };
        let kind = EnumValueParser::<K>::new().parse_ref(command, arg, kind)?;
        Ok(Target { kind, name })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(K::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}
