//! `Debug` of the messages that carry secrets prints no values, so that requests can be logged.

use std::fmt;

use crate::v1::{AuthConfig, KeyValue};

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}

// Environment variables often come from Secrets.
impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=<{} bytes>", self.key, self.value.len())
    }
}

#[cfg(test)]
mod tests {
    use crate::v1::{AuthConfig, ContainerConfig, CreateContainerRequest, KeyValue, PullImageRequest};

    #[test]
    fn requests_print_without_their_secrets() {
        let env = KeyValue { key: "TOKEN".into(), value: "hunter2".into() };
        let create = CreateContainerRequest {
            config: Some(ContainerConfig { envs: vec![env], ..Default::default() }),
            ..Default::default()
        };
        let auth = AuthConfig {
            username: "robot".into(),
            password: "hunter2".into(),
            auth: "hunter2".into(),
            identity_token: "hunter2".into(),
            registry_token: "hunter2".into(),
            ..Default::default()
        };
        let pull = PullImageRequest { auth: Some(auth), ..Default::default() };
        let printed = format!("{create:?} {pull:?} {create:#?} {pull:#?}");
        assert!(printed.contains("TOKEN=<7 bytes>") && printed.contains("robot"), "{printed}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}
