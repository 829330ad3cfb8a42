//! The environment, command and arguments of a container.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ResourceFieldSelector;
use podwright_agent::pod_spec::{FieldRefError, VolumeSpecError};
use podwright_agent::translate::{
    ContainerRequest, HostView, NodeSettings, References, Situation, container_config,
};
use podwright_core::model::{ImageFacts, Pod};
use serde_json::json;

/// Lines: `NAME=VALUE` is a variable, anything else an argument.
pub fn environment(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (mut env, mut args) = (Vec::new(), Vec::new());
    for line in text.split('\n') {
        match line.split_once('=') {
            Some((name, value)) => env.push(json!({"name": name, "value": value})),
            None => args.push(line),
        }
    }
    let container = json!({"name": "c", "image": "i", "env": env, "args": args, "command": args});
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [container]}});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let image = ImageFacts { id: "i".into(), uid: Some(1), username: String::new() };
    let references = References::default();
    let request =
        ContainerRequest { name: "c", attempt: 0, image: &image, ips: &[], target: None, references: &references };
    let Ok(config) = container_config(&pod, &request, &NodeSettings::default(), &Situation::default(), &Files) else {
        return;
    };
    let size = config.envs.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
    let texts = config.command.iter().chain(&config.args).map(String::len).sum::<usize>();
    // Twice the bound of 1 MiB: names are not counted.
    assert!(size <= 2 << 20 && texts <= 2 << 20, "{size} bytes of environment, {texts} bytes of command");
}

struct Files;

impl HostView for Files {
    fn volume(&self, _: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError> {
        Err(VolumeSpecError::NotFound(volume.into()))
    }

    fn sub_path(&self, _: &Pod, _: &str, _: usize, _: &str, _: &str) -> PathBuf {
        "/file".into()
    }

    fn hosts_file(&self, _: &Pod) -> PathBuf {
        "/file".into()
    }

    fn termination_log(&self, _: &Pod, _: &str, _: u32) -> PathBuf {
        "/file".into()
    }

    fn field(&self, _: &Pod, path: &str, _: &[String]) -> Result<String, FieldRefError> {
        Err(FieldRefError::Unsupported(path.into()))
    }

    fn resource_field(&self, _: &Pod, _: &str, selector: &ResourceFieldSelector) -> Result<String, FieldRefError> {
        Err(FieldRefError::UnsupportedResource(selector.resource.clone()))
    }
}
