//! Configurations of CNI networks.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cni_error::CniError;

/// Larger files are refused: a configuration has some kilobytes.
const FILE_LEN_MAX: u64 = 1 << 20;
/// More plugins than any network has.
const PLUGINS_MAX: usize = 32;
/// The supported versions of the specification.
const VERSIONS: [CniVersion; 4] = [CniVersion(0, 3, 1), CniVersion(0, 4, 0), CniVersion(1, 0, 0), CniVersion(1, 1, 0)];

/// A version of the specification.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct CniVersion(pub(crate) u8, pub(crate) u8, pub(crate) u8);

impl CniVersion {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version = CniVersion(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for CniVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The configuration of one plugin, as it is in the file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PluginConfig(pub(crate) Map<String, Value>);

impl PluginConfig {
    /// The plugin's type, which is the name of its program.
    pub(crate) fn kind(&self) -> String {
        self.0.get("type").and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

/// A network: plugins that are run one after another.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct NetworkList {
    pub(crate) name: String,
    pub(crate) version: CniVersion,
    pub(crate) plugins: Vec<PluginConfig>,
    pub(crate) disable_gc: bool,
}

/// Why a file is not a configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigFileError {
    #[error("{0}")]
    Read(#[source] io::Error),
    #[error("larger than 1 MiB")]
    TooLarge,
    #[error("{0}")]
    Json(#[source] serde_json::Error),
    #[error("not a JSON object")]
    NotAnObject,
    #[error("{0:?} is not a valid network name")]
    Name(String),
    #[error("CNI version {0:?} is not supported; 0.3.1, 0.4.0, 1.0.0 and 1.1.0 are")]
    Version(Vec<String>),
    #[error("plugins: {0}")]
    Plugins(#[source] serde_json::Error),
    #[error("{0} plugins; a network has 1 to {PLUGINS_MAX}")]
    PluginCount(usize),
    #[error("{0:?} is not a valid plugin type")]
    PluginType(String),
}

impl NetworkList {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ConfigFileError> {
        let value: Value = serde_json::from_slice(bytes).map_err(ConfigFileError::Json)?;
        let Value::Object(object) = value else { return Err(ConfigFileError::NotAnObject) };
        let name = object.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
            return Err(ConfigFileError::Name(name));
        }
        let version = version_of(&object)?;
        let disable_gc = object.get("disableGC").and_then(Value::as_bool).unwrap_or(false);
        let plugins: Vec<PluginConfig> = match object.get("plugins") {
            // A file with a single plugin is its configuration itself.
            None => vec![PluginConfig(object)],
            Some(plugins) => serde_json::from_value(plugins.clone()).map_err(ConfigFileError::Plugins)?,
        };
        if plugins.is_empty() || plugins.len() > PLUGINS_MAX {
            return Err(ConfigFileError::PluginCount(plugins.len()));
        }
        let bad = |kind: &str| kind.is_empty() || kind.contains('/') || kind.starts_with('.');
        match plugins.iter().map(PluginConfig::kind).find(|kind| bad(kind)) {
            Some(kind) => Err(ConfigFileError::PluginType(kind)),
            None => Ok(NetworkList { name, version, plugins, disable_gc }),
        }
    }

    /// What a plugin reads: its configuration with the network's name and version, the values for the capabilities that it
    /// declares, and the result of the plugin before it.
    pub(crate) fn plugin_input(
        &self,
        plugin: &PluginConfig,
        runtime: &Map<String, Value>,
        previous: Option<&Value>,
    ) -> Map<String, Value> {
        let mut input = plugin.0.clone();
        let declared = input.remove("capabilities");
        input.remove("cniVersions");
        input.insert("name".to_owned(), self.name.as_str().into());
        input.insert("cniVersion".to_owned(), self.version.to_string().into());
        let declares =
            |name: &str| declared.as_ref().and_then(|all| all.get(name)).and_then(Value::as_bool) == Some(true);
        let values: Map<String, Value> = runtime
            .iter()
            .filter(|(name, _)| declares(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !values.is_empty() {
            input.insert("runtimeConfig".to_owned(), Value::Object(values));
        }
        if let Some(previous) = previous {
            input.insert("prevResult".to_owned(), previous.clone());
        }
        input
    }
}

/// `cniVersion`, or the newest supported one of `cniVersions` (1.1).
fn version_of(object: &Map<String, Value>) -> Result<CniVersion, ConfigFileError> {
    let listed = object.get("cniVersions").and_then(Value::as_array).cloned().unwrap_or_default();
    let single = object.get("cniVersion").cloned();
    let offered: Vec<String> =
        listed.iter().chain(single.as_ref()).filter_map(Value::as_str).map(str::to_owned).collect();
    let spoken = offered.iter().filter_map(|text| CniVersion::parse(text)).filter(|v| VERSIONS.contains(v)).max();
    spoken.ok_or(ConfigFileError::Version(offered))
}

/// The first valid configuration by file name. Invalid ones before it are skipped with a warning.
pub(crate) fn load(dir: &Path) -> Result<NetworkList, CniError> {
    let none = |reason: String| CniError::NoConfig { dir: dir.to_owned(), reason };
    let entries = fs::read_dir(dir).map_err(|e| none(format!(": {e}")))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "conflist" || e == "conf" || e == "json"));
    files.sort();
    let mut refused = vec![];
    for path in files {
        let parsed = read(&path).and_then(|bytes| NetworkList::parse(&bytes));
        match parsed {
            Ok(list) => return Ok(list),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "CNI configuration refused");
                refused.push(format!("{}: {error}", path.display()));
            }
        }
    }
    let reason = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join("; ")) };
    Err(none(reason))
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigFileError> {
    let mut bytes = vec![];
    let file = fs::File::open(path).map_err(ConfigFileError::Read)?;
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(ConfigFileError::Read)?;
    if bytes.len() as u64 > FILE_LEN_MAX { Err(ConfigFileError::TooLarge) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<NetworkList, ConfigFileError> {
        NetworkList::parse(value.to_string().as_bytes())
    }

    #[test]
    fn the_first_valid_file_by_name_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().starts_with("no CNI configuration in /"));
        write("10-broken.conflist", "{");
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("10-broken.conflist"), "{error}");
        write("30-b.conflist", r#"{"cniVersion":"1.0.0","name":"b","plugins":[{"type":"x"}]}"#);
        write("20-a.conf", r#"{"cniVersion":"0.3.1","name":"a","type":"bridge"}"#);
        write("00-c.txt", r#"{"cniVersion":"1.0.0","name":"c","plugins":[{"type":"x"}]}"#);
        let list = load(dir.path()).unwrap();
        assert_eq!(
            (list.name.as_str(), list.version, list.plugins[0].kind().as_str()),
            ("a", CniVersion(0, 3, 1), "bridge")
        );
    }

    #[test]
    fn versions_outside_of_the_supported_ones_and_hostile_types_are_refused() {
        let list = |version: &str, kind: &str| {
            parse(&json!({"cniVersion": version, "name": "n", "plugins": [{"type": kind}]}))
        };
        for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            assert_eq!(list(version, "x").unwrap().version.to_string(), version);
        }
        for version in ["0.2.0", "1.2.0", "2.0.0", "", "1.0", "1.0.0.0"] {
            assert!(list(version, "x").is_err(), "{version}");
        }
        for kind in ["", "../../bin/sh", "/bin/sh", ".", ".."] {
            assert!(list("1.0.0", kind).is_err(), "{kind}");
        }
        assert!(parse(&json!({"cniVersion": "1.0.0", "name": "../x", "plugins": [{"type": "x"}]})).is_err());
        assert!(parse(&json!({"cniVersion": "1.0.0", "name": "n", "plugins": []})).is_err());
        let several = json!({"cniVersions": ["0.4.0", "1.1.0", "9.0.0"], "cniVersion": "0.4.0", "name": "n", "plugins": [{"type": "x"}]});
        assert_eq!(parse(&several).unwrap().version, CniVersion(1, 1, 0));
    }

    #[test]
    fn a_plugin_gets_only_the_capabilities_it_declares() {
        let list = parse(&json!({
            "cniVersion": "1.0.0", "name": "n",
            "plugins": [{"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": false}}],
        }));
        let list = list.unwrap();
        let Value::Object(runtime) = json!({"portMappings": [1], "bandwidth": {}, "dns": {}}) else { unreachable!() };
        let input = list.plugin_input(&list.plugins[0], &runtime, Some(&json!({"ips": []})));
        assert_eq!(
            Value::Object(input),
            json!({
                "type": "portmap", "name": "n", "cniVersion": "1.0.0",
                "runtimeConfig": {"portMappings": [1]}, "prevResult": {"ips": []},
            })
        );
    }
}
