//! `podwright apply`: makes what files say so.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use podwright_agent::sources::{documents as parse, read as find_in, submitted_pods};
use serde_json::{Value, json};

use super::{Client, ClientError, encode, path, wait};
use crate::check::format_finding;
use crate::cli::ApplyFlags;

/// As the agent's own limit for a manifest.
const FILE_MAX: u64 = 10 << 20;

/// One object of a file.
pub(super) struct Document {
    object: Value,
    /// The file, for messages.
    origin: String,
}

/// Every object is tried, but for those of files with mistakes; any that fails makes the exit code.
pub(super) async fn apply(flags: &ApplyFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let texts = texts(&flags.files)?;
    let documents = documents(&texts)?;
    let bad: BTreeSet<&str> =
        texts.iter().filter(|text| !text.judge(flags.strict)).map(|t| t.origin.as_str()).collect();
    let mut code = if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    for document in documents.iter().filter(|document| !bad.contains(document.origin.as_str())) {
        match apply_one(&client, flags, document).await {
            Ok(said) => println!("{said}{}", if flags.dry_run { " (dry run)" } else { "" }),
            Err(error) => {
                eprintln!("podwright: {}: {error}", document.origin);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

async fn apply_one(client: &Client, flags: &ApplyFlags, document: &Document) -> Result<String, ClientError> {
    let namespace = document.namespace(flags.namespace.as_deref());
    let mut object = document.object.clone();
    object["metadata"]["namespace"] = json!(namespace);
    let dry = if flags.dry_run { "?dryRun=All" } else { "" };
    let (all, named) = (path("pods", Some(&namespace)), object["metadata"]["name"].as_str().is_some());
    if !named {
        let made: Pod = client.ask(Method::POST, &format!("{all}{dry}"), Some(&object)).await?;
        return Ok(format!("pod/{} created", made.metadata.name.unwrap_or_default()));
    }
    let name = document.name()?;
    let one = format!("{all}/{}", encode(&name));
    let there: Pod = match client.get(&one).await {
        Err(error) if error.is_not_found() => {
            client.ask::<Pod>(Method::POST, &format!("{all}{dry}"), Some(&object)).await?;
            return Ok(format!("pod/{name} created"));
        }
        there => there?,
    };
    match client.ask::<Pod>(Method::PUT, &format!("{one}{dry}"), Some(&object)).await {
        Ok(now) if is_same(&now, &there) => Ok(format!("pod/{name} unchanged")),
        Ok(_) => Ok(format!("pod/{name} configured")),
        Err(ClientError::Refused { code: 422, .. }) if flags.force && !flags.dry_run => {
            let options = json!({"preconditions": {"uid": there.metadata.uid}});
            client.ask::<Value>(Method::DELETE, &one, Some(&options)).await?;
            wait::gone(client, &there, None).await?;
            client.ask::<Pod>(Method::POST, &all, Some(&object)).await?;
            Ok(format!("pod/{name} replaced"))
        }
        Err(ClientError::Refused { code: 422, message }) => {
            let message = format!("{message}; with --force the pod is ended and made anew");
            Err(ClientError::Refused { code: 422, message })
        }
        Err(error) => Err(error),
    }
}

/// Nothing that a person writes differs. The status goes its own ways meanwhile, and the version with it.
fn is_same(a: &Pod, b: &Pod) -> bool {
    let (m, n) = (&a.metadata, &b.metadata);
    a.spec == b.spec && m.labels == n.labels && m.annotations == n.annotations
}

/// What a file says.
pub(super) struct Text {
    /// The file, for messages.
    origin: String,
    bytes: Vec<u8>,
}

impl Text {
    /// Tell what is wrong with it and what does nothing, by line; whether it can be used.
    fn judge(&self, strict: bool) -> bool {
        let found = find_in(&self.bytes, &self.origin, &submitted_pods());
        let doubtful = if strict { "error" } else { "warning" };
        for (severity, findings) in [("error", &found.errors), (doubtful, &found.warnings)] {
            findings.iter().for_each(|finding| eprint!("{}", format_finding(&self.origin, severity, finding)));
        }
        found.errors.is_empty() && (found.warnings.is_empty() || !strict)
    }
}

/// The texts of these files; `-` is stdin, a directory all manifests in it.
pub(super) fn texts(files: &[PathBuf]) -> Result<Vec<Text>, ClientError> {
    let mut texts = vec![];
    for file in files {
        for file in manifests(file)? {
            let origin = if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() };
            let bytes = read(&file).map_err(|error| ClientError::Usage(format!("{origin}: {error}")))?;
            texts.push(Text { origin, bytes });
        }
    }
    Ok(texts)
}

/// All objects in these texts.
pub(super) fn documents(texts: &[Text]) -> Result<Vec<Document>, ClientError> {
    let mut found = vec![];
    for Text { origin, bytes } in texts {
        let objects = parse(bytes).map_err(|error| ClientError::Usage(format!("{origin}: {error}")))?;
        for object in objects {
            flatten(object, origin, &mut found)?;
        }
    }
    Ok(found)
}

/// A list is its items. Only pods can be taken.
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
        ("", _) => return Err(ClientError::Usage(format!("{origin}: kind is missing; write `kind: Pod`"))),
        _ => return Err(ClientError::Usage(format!("{origin}: kind {kind} can't be taken; pods can"))),
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
    /// Its own namespace, else the one that was asked for.
    pub(super) fn namespace(&self, asked: Option<&str>) -> String {
        self.object["metadata"]["namespace"].as_str().or(asked).unwrap_or("default").to_owned()
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
    fn files_directories_and_lists_become_pods() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "b.yaml",
            "kind: Pod\nmetadata: {name: b}\n---\nkind: Pod\nmetadata: {name: c, namespace: x}\n",
        );
        write(dir.path(), "a.json", r#"{"kind": "PodList", "items": [{"metadata": {"name": "a"}}]}"#);
        write(dir.path(), "README.md", "no manifest");
        let found = documents(&texts(&[dir.path().to_owned()]).unwrap()).unwrap();
        let names: Vec<String> = found.iter().map(|d| format!("{}/{}", d.namespace(None), d.name().unwrap())).collect();
        assert_eq!(names, ["default/a", "default/b", "x/c"]);
    }

    #[test]
    fn what_cannot_be_taken_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        for (text, word) in [
            ("kind: Service\n", "kind Service can't be taken"),
            ("metadata: {}\n", "kind is missing"),
            ("a: [\n", "line "),
            ("", "empty"),
        ] {
            let file = write(dir.path(), "x.yaml", text);
            let Err(error) = documents(&texts(&[file]).unwrap()) else { panic!("{text} was taken") };
            let said = error.to_string();
            assert!(said.contains(word) && said.contains("x.yaml"), "{said}");
        }
    }
}
