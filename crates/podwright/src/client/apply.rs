//! `podwright apply`: creates or updates the pods in files.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use podwright_agent::sources::{documents as parse, read_manifests, submitted_pods};
use podwright_core::static_pod::{FindingKind, ManifestError, instead_of};
use serde_json::{Value, json};

use super::{Client, ClientError, encode, path, pod_path, wait};
use crate::check::format_finding;
use crate::cli::{ApplyFlags, FieldValidation};

/// The agent's limit for a manifest.
const FILE_MAX: u64 = 10 << 20;

/// One pod of a file.
pub(super) struct Document {
    object: Value,
    /// The path of the file, for messages.
    origin: String,
}

/// Applies all pods except those of invalid files. The exit code is 1 if anything failed.
pub(super) async fn apply(flags: &ApplyFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let texts = texts(&flags.files)?;
    let documents = documents(&texts)?;
    for document in &documents {
        document.namespace(flags.namespace.as_deref())?;
    }
    let rules = FieldRules { validate: flags.validate, unsupported_is_error: flags.strict };
    let invalid: BTreeSet<&str> =
        texts.iter().filter(|text| !text.validate(rules)).map(|t| t.origin.as_str()).collect();
    let mut code = if invalid.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    for document in documents.iter().filter(|document| !invalid.contains(document.origin.as_str())) {
        match apply_one(&client, flags, document).await {
            Ok(result) => println!("{result}{}", if flags.dry_run { " (dry run)" } else { "" }),
            Err(error) => {
                eprintln!("podwright: {}: {error}", document.origin);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

async fn apply_one(client: &Client, flags: &ApplyFlags, document: &Document) -> Result<String, ClientError> {
    let namespace = document.namespace(flags.namespace.as_deref())?;
    let mut object = document.object.clone();
    object["metadata"]["namespace"] = json!(namespace);
    let dry = if flags.dry_run { "?dryRun=All" } else { "" };
    let (all, named) = (path("pods", Some(&namespace)), object["metadata"]["name"].as_str().is_some());
    if !named {
        let created: Pod = client.send(Method::POST, &format!("{all}{dry}"), Some(&object)).await?;
        return Ok(format!("pod/{} created", created.metadata.name.unwrap_or_default()));
    }
    let name = document.name()?;
    let one = format!("{all}/{}", encode(&name));
    let existing: Pod = match client.get(&one).await {
        Err(error) if error.is_not_found() => {
            client.send::<Pod>(Method::POST, &format!("{all}{dry}"), Some(&object)).await?;
            return Ok(format!("pod/{name} created"));
        }
        existing => existing?,
    };
    match client.send::<Pod>(Method::PUT, &format!("{one}{dry}"), Some(&object)).await {
        Ok(now) if is_same(&now, &existing) => Ok(format!("pod/{name} unchanged")),
        Ok(_) => Ok(format!("pod/{name} configured")),
        Err(ClientError::Refused { code: 422, message }) if flags.force => {
            check_replacement(client, &all, &object).await?;
            if flags.dry_run {
                return Ok(format!("pod/{name} would be deleted and created again: {message}"));
            }
            replace(client, &existing, &all, &object).await?;
            Ok(format!("pod/{name} replaced"))
        }
        Err(ClientError::Refused { code: 422, message }) => {
            let message = format!("{message}; --force deletes and recreates the pod");
            Err(ClientError::Refused { code: 422, message })
        }
        Err(error) => Err(error),
    }
}

/// Fails if the agent would refuse the new pod: then the existing one must not be deleted. The agent validates a pod before it
/// reports that the name is taken.
async fn check_replacement(client: &Client, all: &str, object: &Value) -> Result<(), ClientError> {
    match client.send::<Pod>(Method::POST, &format!("{all}?dryRun=All"), Some(object)).await {
        Err(ClientError::Refused { code: 409, .. }) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn replace(client: &Client, existing: &Pod, all: &str, object: &Value) -> Result<(), ClientError> {
    let options = json!({"preconditions": {"uid": existing.metadata.uid}});
    client.send::<Value>(Method::DELETE, &pod_path(existing), Some(&options)).await?;
    wait::gone(client, existing, None).await?;
    client.send::<Pod>(Method::POST, all, Some(object)).await?;
    Ok(())
}

/// Spec, labels and annotations are equal. Status and resource version change at any time.
fn is_same(a: &Pod, b: &Pod) -> bool {
    let (m, n) = (&a.metadata, &b.metadata);
    a.spec == b.spec && m.labels == n.labels && m.annotations == n.annotations
}

/// The content of a file.
pub(super) struct ManifestText {
    /// The path of the file, for messages.
    origin: String,
    bytes: Vec<u8>,
}

impl ManifestText {
    /// Prints errors and warnings by line. Returns whether the file can be applied.
    fn validate(&self, rules: FieldRules) -> bool {
        let found = read_manifests(&self.bytes, &self.origin, &submitted_pods());
        let mut valid = found.errors.is_empty();
        found.errors.iter().for_each(|finding| eprint!("{}", format_finding(&self.origin, "error", finding)));
        for finding in &found.warnings {
            let unknown = finding.kind == FindingKind::UnknownField;
            if unknown && rules.validate == FieldValidation::Ignore {
                continue;
            }
            let refused = rules.unsupported_is_error || (unknown && rules.validate == FieldValidation::Strict);
            valid &= !refused;
            let severity = if refused { "error" } else { "warning" };
            eprint!("{}", format_finding(&self.origin, severity, finding));
        }
        if !valid && found.errors.is_empty() && !rules.unsupported_is_error {
            eprintln!("podwright: {} is not applied; --validate=warn applies it without these fields", self.origin);
        }
        valid
    }
}

/// Which fields without effect are errors.
#[derive(Clone, Copy)]
struct FieldRules {
    /// For unknown fields.
    validate: FieldValidation,
    /// `--strict`: both unknown and unsupported fields are.
    unsupported_is_error: bool,
}

/// Reads files; `-` is stdin, a directory stands for all manifests in it.
pub(super) fn texts(files: &[PathBuf]) -> Result<Vec<ManifestText>, ClientError> {
    let mut texts = vec![];
    for file in files {
        for file in manifests(file)? {
            let origin = if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() };
            let bytes = read(&file).map_err(|error| ClientError::Usage(format!("{origin}: {error}")))?;
            texts.push(ManifestText { origin, bytes });
        }
    }
    Ok(texts)
}

/// All pods in these files.
pub(super) fn documents(texts: &[ManifestText]) -> Result<Vec<Document>, ClientError> {
    let mut found = vec![];
    for ManifestText { origin, bytes } in texts {
        let objects = parse(bytes).map_err(|error| ClientError::Usage(format!("{origin}: {error}")))?;
        for object in objects {
            flatten(object, origin, &mut found)?;
        }
    }
    Ok(found)
}

/// Adds a pod, or the items of a list. Other kinds are an error.
fn flatten(object: Value, origin: &str, into: &mut Vec<Document>) -> Result<(), ClientError> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    match (kind.as_str(), object.get("items")) {
        ("Pod", _) => into.push(Document { object, origin: origin.to_owned() }),
        ("List" | "PodList", Some(Value::Array(items))) => {
            for item in items {
                let mut item = item.clone();
                if kind == "PodList" && item["kind"].is_null() {
                    (item["kind"], item["apiVersion"]) = (json!("Pod"), json!("v1"));
                }
                flatten(item, origin, into)?;
            }
        }
        ("", _) if object.get("services").is_some_and(Value::is_object) => {
            return Err(ClientError::Usage(format!("{origin}: {}", ManifestError::Compose)));
        }
        ("", _) => return Err(ClientError::Usage(format!("{origin}: kind is missing, expected `kind: Pod`"))),
        _ => {
            let message = format!("{origin}: kind {kind} can't run on a node: {}", instead_of(&kind));
            return Err(ClientError::Usage(message));
        }
    }
    Ok(())
}

fn manifests(file: &Path) -> Result<Vec<PathBuf>, ClientError> {
    if !file.is_dir() {
        return Ok(vec![file.to_owned()]);
    }
    let failed = |error: std::io::Error| ClientError::Usage(format!("{}: {error}", file.display()));
    let mut found = vec![];
    for entry in std::fs::read_dir(file).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let manifest = path.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known));
        if manifest && path.is_file() {
            found.push(path);
        }
    }
    if found.is_empty() {
        let message = format!("{}: the directory has no *.yaml, *.yml or *.json files", file.display());
        return Err(ClientError::Usage(message));
    }
    found.sort();
    Ok(found)
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let from: Box<dyn Read> =
        if file == Path::new("-") { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(file)?) };
    let mut bytes = vec![];
    from.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(std::io::Error::other("larger than 10 MiB"));
    }
    Ok(bytes)
}

impl Document {
    /// Its own namespace, else the one of the flag. It is an error if both are given and differ, as for kubectl.
    pub(super) fn namespace(&self, flag: Option<&str>) -> Result<String, ClientError> {
        let own = self.object["metadata"]["namespace"].as_str();
        match (own, flag) {
            (Some(own), Some(flag)) if own != flag => Err(ClientError::Usage(format!(
                "{}: the namespace {own:?} of the pod does not match --namespace {flag:?}",
                self.origin
            ))),
            _ => Ok(own.or(flag).unwrap_or("default").to_owned()),
        }
    }

    pub(super) fn name(&self) -> Result<String, ClientError> {
        let name = self.object["metadata"]["name"].as_str().map(str::to_owned);
        name.ok_or_else(|| ClientError::Usage(format!("{}: metadata.name is missing", self.origin)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
        let file = dir.join(name);
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn files_directories_and_lists_contain_pods() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "b.yaml",
            "kind: Pod\nmetadata: {name: b}\n---\nkind: Pod\nmetadata: {name: c, namespace: x}\n",
        );
        write(dir.path(), "a.json", r#"{"kind": "PodList", "items": [{"metadata": {"name": "a"}}]}"#);
        write(dir.path(), "README.md", "no manifest");
        let found = documents(&texts(&[dir.path().to_owned()]).unwrap()).unwrap();
        let names: Vec<String> =
            found.iter().map(|d| format!("{}/{}", d.namespace(None).unwrap(), d.name().unwrap())).collect();
        assert_eq!(names, ["default/a", "default/b", "x/c"]);
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("kind: Service\n", "kind Service can't run on a node: declare a hostPort"),
            ("kind: Deployment\n", "write a Pod with the metadata and spec of its spec.template"),
            ("metadata: {}\n", "kind is missing"),
            ("services:\n  web: {image: nginx}\n", "this is a compose file"),
            ("a: [\n", "line "),
            ("", "empty"),
        ] {
            let file = write(dir.path(), "x.yaml", text);
            let Err(error) = documents(&texts(&[file]).unwrap()) else { panic!("{text} was accepted") };
            let error = error.to_string();
            assert!(error.contains(expected) && error.contains("x.yaml"), "{error}");
        }
    }
}
