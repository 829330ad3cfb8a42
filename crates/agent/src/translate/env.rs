//! A container's environment: literal values with `$(NAME)` expanded, references to objects and to the pod's fields and
//! resources, and the addresses of services.

use std::borrow::Cow;
use std::collections::HashMap;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, EnvVarSource};
use podwright_core::expansion::{EXPANDED_BYTES_MAX, expand};
use podwright_core::model::{Container, Pod};
use podwright_cri::v1::KeyValue;

use super::expand::expand_strict;
use super::{HostView, MountError, References, TranslateError, service_links};
use crate::objects::unless_optional;
use crate::pod_spec::pod_namespace;

/// Variables in the order they were first named; a later value of a name replaces an earlier one. The sum of names and values is at
/// most [`EXPANDED_BYTES_MAX`], services apart.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Environment {
    vars: Vec<(String, String)>,
    /// Positions in `vars`.
    index: HashMap<String, usize>,
    /// The sum of names and values in `vars`.
    bytes: usize,
    /// Visible to references; a variable of the pod takes precedence.
    services: Vec<(String, String)>,
    /// Positions in `services`.
    service_index: HashMap<String, usize>,
}

impl Environment {
    /// Resolves the container's variables, each seeing those before it.
    pub(super) fn of(
        pod: &Pod,
        container: &Container,
        ips: &[String],
        references: &References,
        host: &dyn HostView,
    ) -> Result<Self, TranslateError> {
        let mut env = Self::default();
        let services = references.services()?;
        env.services = service_links::variables(services);
        let named = env.services.iter().enumerate();
        env.service_index = named.map(|(at, (name, _))| (name.clone(), at)).collect();
        for source in container.env_from.iter().flatten() {
            env.put_all(source, references)?;
        }
        for var in container.env.iter().flatten() {
            let value = match (var.value.as_deref().filter(|value| !value.is_empty()), &var.value_from) {
                (Some(value), _) => {
                    let expanded = expand(value, |name| env.get(name), EXPANDED_BYTES_MAX);
                    Some(expanded.map_err(|_| TranslateError::EnvironmentTooLarge { name: var.name.clone() })?)
                }
                (None, Some(source)) => resolve(pod, container, var, source, ips, references, host)?,
                (None, None) => Some(String::new()),
            };
            // An optional key is missing: the variable is left out.
            let Some(value) = value else { continue };
            env.put(&var.name, value)?;
        }
        Ok(env)
    }

    /// `envFrom`: every key of an object.
    fn put_all(&mut self, source: &EnvFromSource, references: &References) -> Result<(), TranslateError> {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let found = unless_optional(references.config_map(&reference.name), reference.optional)?;
            for (key, value) in found.iter().flat_map(|object| object.data.iter().flatten()) {
                self.put(&format!("{prefix}{key}"), value.clone())?;
            }
        } else if let Some(reference) = &source.secret_ref {
            let found = unless_optional(references.secret(&reference.name), reference.optional)?;
            for (key, value) in found.iter().flat_map(|object| object.data.iter().flatten()) {
                self.put(&format!("{prefix}{key}"), text(key, &value.0)?)?;
            }
        }
        Ok(())
    }

    /// Replaces references in the command and its arguments, whose sum is bounded.
    pub(super) fn expand_command(&self, container: &Container) -> Result<(Vec<String>, Vec<String>), TranslateError> {
        let mut left = EXPANDED_BYTES_MAX;
        let mut expand_all = |field, texts: Option<&Vec<String>>| {
            let mut expanded = Vec::new();
            for (index, text) in texts.into_iter().flatten().enumerate() {
                let text = expand(text, |name| self.get(name), left)
                    .map_err(|_| TranslateError::CommandTooLarge { field, index })?;
                left -= text.len();
                expanded.push(text);
            }
            Ok::<_, TranslateError>(expanded)
        };
        Ok((expand_all("command", container.command.as_ref())?, expand_all("args", container.args.as_ref())?))
    }

    /// The subPath of a mount, its expression resolved.
    pub(super) fn sub_path<'a>(
        &self,
        plain: Option<&'a str>,
        expression: Option<&str>,
    ) -> Result<Cow<'a, str>, MountError> {
        match expression.filter(|text| !text.is_empty()) {
            Some(text) => expand_strict(text, |name| self.get(name)).map(Cow::Owned),
            None => Ok(Cow::Borrowed(plain.unwrap_or_default())),
        }
    }

    pub(super) fn into_key_values(self) -> Vec<KeyValue> {
        let Self { vars, index, services, .. } = self;
        let services = services.into_iter().filter(|(key, _)| !index.contains_key(key));
        vars.into_iter()
            .chain(services)
            .map(|(key, value)| KeyValue { key, value: value.into_bytes().into() })
            .collect()
    }

    fn get(&self, name: &str) -> Option<&str> {
        let own = self.index.get(name).map(|at| &self.vars[*at].1);
        let service = || self.service_index.get(name).map(|at| &self.services[*at].1);
        own.or_else(service).map(String::as_str)
    }

    fn put(&mut self, name: &str, value: String) -> Result<(), TranslateError> {
        if value.contains('\0') {
            return Err(TranslateError::NulInVariable(name.into()));
        }
        let at = self.index.get(name).copied();
        let replaced = at.map_or(0, |at| name.len() + self.vars[at].1.len());
        self.bytes = self.bytes - replaced + name.len() + value.len();
        if self.bytes > EXPANDED_BYTES_MAX {
            return Err(TranslateError::EnvironmentTooLarge { name: name.into() });
        }
        match at {
            Some(at) => self.vars[at].1 = value,
            None => {
                self.index.insert(name.to_owned(), self.vars.len());
                self.vars.push((name.to_owned(), value));
            }
        }
        Ok(())
    }
}

/// The value of a `valueFrom`; `None`: it is optional and missing.
fn resolve(
    pod: &Pod,
    container: &Container,
    var: &EnvVar,
    source: &EnvVarSource,
    ips: &[String],
    references: &References,
    host: &dyn HostView,
) -> Result<Option<String>, TranslateError> {
    let wrong = |source| TranslateError::FieldRef { name: var.name.clone(), source };
    if let Some(field) = &source.field_ref {
        return host.field(pod, &field.field_path, ips).map(Some).map_err(wrong);
    }
    if let Some(selector) = &source.resource_field_ref {
        let name = selector.container_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&container.name);
        return host.resource_field(pod, name, selector).map(Some).map_err(wrong);
    }
    if let Some(reference) = &source.config_map_key_ref {
        let found = unless_optional(references.config_map(&reference.name), reference.optional)?;
        let Some(object) = found else { return Ok(None) };
        let value = object.data.as_ref().and_then(|data| data.get(&reference.key)).cloned();
        return found_key(value, "ConfigMap", pod, &reference.name, &reference.key, reference.optional);
    }
    if let Some(reference) = &source.secret_key_ref {
        let found = unless_optional(references.secret(&reference.name), reference.optional)?;
        let Some(object) = found else { return Ok(None) };
        let value = object.data.as_ref().and_then(|data| data.get(&reference.key));
        let value = value.map(|value| text(&reference.key, &value.0)).transpose()?;
        return found_key(value, "Secret", pod, &reference.name, &reference.key, reference.optional);
    }
    Err(TranslateError::UnsupportedValueFrom(var.name.clone()))
}

fn found_key(
    value: Option<String>,
    kind: &'static str,
    pod: &Pod,
    name: &str,
    key: &str,
    optional: Option<bool>,
) -> Result<Option<String>, TranslateError> {
    if value.is_none() && optional != Some(true) {
        let (key, namespace, name) = (key.to_owned(), pod_namespace(pod).to_owned(), name.to_owned());
        return Err(TranslateError::KeyNotFound { key, kind, namespace, name });
    }
    Ok(value)
}

/// A Secret's value as a variable, which must be UTF-8. The error does not contain the value.
fn text(key: &str, value: &[u8]) -> Result<String, TranslateError> {
    let text = std::str::from_utf8(value);
    text.map(str::to_owned).map_err(|_| TranslateError::SecretNotUtf8(key.into()))
}
