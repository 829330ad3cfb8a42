//! A container's environment: values, references to the pod's fields and resources, `$(NAME)` among them.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource};
use podwright_core::model::{Container, Pod};
use podwright_cri::v1::KeyValue;

use super::expand::{expand, expand_strict};
use super::names::pod_namespace;
use super::{HostView, TranslateError};

/// Variables in the order they were first named; a later value of a name replaces an earlier one.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Environment {
    vars: Vec<(String, String)>,
}

impl Environment {
    /// Resolves the container's variables, each seeing those before it.
    pub(super) fn of(
        pod: &Pod,
        container: &Container,
        ips: &[String],
        host: &dyn HostView,
    ) -> Result<Self, TranslateError> {
        if let Some(source) = container.env_from.iter().flatten().next() {
            let kind = if source.secret_ref.is_some() { "secret" } else { "configMap" };
            let name = source
                .secret_ref
                .as_ref()
                .map(|reference| &reference.name)
                .or(source.config_map_ref.as_ref().map(|reference| &reference.name));
            return Err(no_object(pod, kind, name.map_or("", String::as_str)));
        }
        let mut env = Self::default();
        for var in container.env.iter().flatten() {
            let value = match (var.value.as_deref().filter(|value| !value.is_empty()), &var.value_from) {
                (Some(value), _) => expand(value, |name| env.get(name)),
                (None, Some(source)) => resolve(pod, container, var, source, ips, host)?,
                (None, None) => String::new(),
            };
            if value.contains('\0') {
                return Err(TranslateError::container(format!("environment variable {} has a NUL byte", var.name)));
            }
            env.set(&var.name, value);
        }
        Ok(env)
    }

    /// Replaces references in a command or its arguments.
    pub(super) fn expand_all(&self, texts: Option<&Vec<String>>) -> Vec<String> {
        texts.into_iter().flatten().map(|text| expand(text, |name| self.get(name))).collect()
    }

    /// The subPath of a mount, its expression resolved.
    pub(super) fn sub_path<'a>(
        &self,
        plain: Option<&'a str>,
        expression: Option<&str>,
    ) -> Result<Cow<'a, str>, String> {
        match expression.filter(|text| !text.is_empty()) {
            Some(text) => expand_strict(text, |name| self.get(name)).map(Cow::Owned),
            None => Ok(Cow::Borrowed(plain.unwrap_or_default())),
        }
    }

    pub(super) fn into_key_values(self) -> Vec<KeyValue> {
        self.vars.into_iter().map(|(key, value)| KeyValue { key, value: value.into_bytes().into() }).collect()
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.vars.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.vars.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.vars.push((name.to_owned(), value)),
        }
    }
}

fn resolve(
    pod: &Pod,
    container: &Container,
    var: &EnvVar,
    source: &EnvVarSource,
    ips: &[String],
    host: &dyn HostView,
) -> Result<String, TranslateError> {
    let told = |why: String| TranslateError::container(format!("environment variable {}: {why}", var.name));
    if let Some(field) = &source.field_ref {
        return host.field(pod, &field.field_path, ips).map_err(told);
    }
    if let Some(selector) = &source.resource_field_ref {
        let name = selector.container_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&container.name);
        return host.resource_field(pod, name, selector).map_err(told);
    }
    if let Some(reference) = &source.config_map_key_ref {
        return Err(no_object(pod, "configMap", &reference.name));
    }
    if let Some(reference) = &source.secret_key_ref {
        return Err(no_object(pod, "secret", &reference.name));
    }
    Err(told("this kind of valueFrom is not supported".into()))
}

fn no_object(pod: &Pod, kind: &str, name: &str) -> TranslateError {
    TranslateError::container(format!(
        "couldn't get {kind} {}/{name}: no API server is configured on this node",
        pod_namespace(pod)
    ))
}
