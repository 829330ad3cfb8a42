//! Types from JSON that was read as a value first.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Decodes a value by way of its text: another decoder of the API types, for values, would only enlarge the program.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, serde_json::Error> {
    serde_json::from_slice(&serde_json::to_vec(value)?)
}
