//! Output formats for API objects.

use std::fmt::Write;

use serde_json::Value;
use serde_json::ser::PrettyFormatter;

use super::ClientError;
use crate::cli::Output;

/// An object or a list in this format.
pub(super) fn text(value: &Value, output: Output) -> Result<String, ClientError> {
    let failed = |error: &dyn std::fmt::Display| ClientError::Write(error.to_string());
    match output {
        Output::Yaml => serde_saphyr::to_string(value).map_err(|error| failed(&error)),
        Output::Name => Ok(names(value)),
        Output::Json | Output::Wide => {
            let mut text = Vec::new();
            let mut json = serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
            serde::Serialize::serialize(value, &mut json).map_err(|error| failed(&error))?;
            text.push(b'\n');
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
    }
}

/// `pod/web`, one per line.
fn names(value: &Value) -> String {
    let mut text = String::new();
    let objects = value["items"].as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    for object in objects {
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let _ = writeln!(text, "{}/{}", string(&object["kind"]).to_lowercase(), string(&object["metadata"]["name"]));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_lists_and_objects_are_printed_one_per_line() {
        let pod = |name: &str| json!({"kind": "Pod", "metadata": {"name": name}});
        assert_eq!(text(&pod("web"), Output::Name).unwrap(), "pod/web\n");
        let list = json!({"kind": "PodList", "items": [pod("a"), pod("b")]});
        assert_eq!(text(&list, Output::Name).unwrap(), "pod/a\npod/b\n");
        assert_eq!(text(&json!({"a": 1}), Output::Json).unwrap(), "{\n    \"a\": 1\n}\n");
    }
}
