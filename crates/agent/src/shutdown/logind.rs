//! logind, by its D-Bus interface `org.freedesktop.login1.Manager`.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::time::Duration;

use futures::StreamExt;
use serde::Serialize;
use zbus::connection::Builder;
use zbus::message::{Message, Type};
use zbus::{Connection, DynamicType, MatchRule, MessageStream, Variant};

/// A failed call on logind.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogindError {
    #[error("connect to the system bus")]
    Connect {
        #[source]
        source: zbus::Error,
    },
    #[error("{method} by D-Bus")]
    Call {
        /// The method or property.
        method: &'static str,
        #[source]
        source: zbus::Error,
    },
    #[error("{method} by D-Bus took longer than {} s", CALL_LIMIT.as_secs())]
    Timeout { method: &'static str },
    #[error("the connection to the system bus was lost")]
    Lost,
}

/// A connection that listens to `PrepareForShutdown`.
pub(super) struct Logind {
    bus: Connection,
    signals: MessageStream,
}

impl Logind {
    /// Listens before anything is read, so that no change is missed.
    pub(super) async fn connect(address: Option<&str>) -> Result<Self, LogindError> {
        let failed = |source| LogindError::Connect { source };
        let builder = match address {
            Some(address) => Builder::address(address),
            None => Builder::system(),
        };
        let connect = async {
            let bus = builder.build().await?;
            let rule = MatchRule::builder().msg_type(Type::Signal).sender(SERVICE).path(PATH);
            let rule = rule.interface(MANAGER).member("PrepareForShutdown").build()?;
            let signals = MessageStream::for_match_rule(rule, &bus, NonZeroUsize::new(SIGNALS_QUEUED_MAX)).await?;
            Ok::<_, zbus::Error>(Self { bus, signals })
        };
        let timeout = |_| LogindError::Timeout { method: "connect" };
        tokio::time::timeout(CALL_LIMIT, connect).await.map_err(timeout)?.map_err(failed)
    }

    /// How long a shutdown is delayed at most.
    pub(super) async fn inhibit_delay_max(&self) -> Result<Duration, LogindError> {
        let method = "InhibitDelayMaxUSec";
        match self.property(method).await?.body().deserialize() {
            Ok(Variant::U64(microseconds)) => Ok(Duration::from_micros(microseconds)),
            Ok(_) => Err(LogindError::Call { method, source: zbus::Error::IncorrectType }),
            Err(source) => Err(LogindError::Call { method, source }),
        }
    }

    /// A shutdown has begun and is delayed.
    pub(super) async fn is_preparing(&self) -> Result<bool, LogindError> {
        let method = "PreparingForShutdown";
        match self.property(method).await?.body().deserialize() {
            Ok(Variant::Bool(is_preparing)) => Ok(is_preparing),
            Ok(_) => Err(LogindError::Call { method, source: zbus::Error::IncorrectType }),
            Err(source) => Err(LogindError::Call { method, source }),
        }
    }

    /// A lock that delays the shutdown until it is closed.
    pub(super) async fn inhibit(&self) -> Result<OwnedFd, LogindError> {
        let method = "Inhibit";
        let body = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay");
        let reply = self.call((SERVICE, PATH, MANAGER), method, &body).await?;
        let fd: zbus::OwnedFd = reply.body().deserialize().map_err(|source| LogindError::Call { method, source })?;
        Ok(fd.into())
    }

    /// logind reads its configuration again.
    pub(super) async fn reload(&self) -> Result<(), LogindError> {
        let body = ("systemd-logind.service", "all", SIGHUP);
        self.call(SYSTEMD, "KillUnit", &body).await.map(drop)
    }

    /// The next signal: true if the host prepares for a shutdown, false if that was cancelled.
    pub(super) async fn next_signal(&mut self) -> Result<bool, LogindError> {
        loop {
            let signal = self.signals.next().await.ok_or(LogindError::Lost)?;
            let signal = signal.map_err(|_| LogindError::Lost)?;
            match signal.body().deserialize() {
                Ok(is_preparing) => return Ok(is_preparing),
                Err(error) => tracing::warn!(%error, "a signal of logind is not readable"),
            }
        }
    }

    async fn property(&self, name: &'static str) -> Result<Message, LogindError> {
        self.call((SERVICE, PATH, "org.freedesktop.DBus.Properties"), "Get", &(MANAGER, name)).await.map_err(|error| {
            match error {
                LogindError::Call { source, .. } => LogindError::Call { method: name, source },
                other => other,
            }
        })
    }

    async fn call<B: Serialize + DynamicType + Sync>(
        &self,
        (service, path, interface): (&str, &str, &str),
        method: &'static str,
        body: &B,
    ) -> Result<Message, LogindError> {
        let call = self.bus.call_method(Some(service), path, Some(interface), method, body);
        let reply = tokio::time::timeout(CALL_LIMIT, call).await.map_err(|_| LogindError::Timeout { method })?;
        reply.map_err(|source| LogindError::Call { method, source })
    }
}

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SYSTEMD: (&str, &str, &str) =
    ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
const SIGHUP: i32 = 1;
/// logind answers in milliseconds.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// A shutdown has one or two signals.
const SIGNALS_QUEUED_MAX: usize = 16;
