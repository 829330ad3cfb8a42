//! The slices of systemd, by its D-Bus interface `org.freedesktop.systemd1.Manager`.
//!
//! The connection is made on the system bus, or without a bus on systemd's own socket, and again when it was lost: a restart
//! of the bus must not stop pods from starting. Each call has a limit; a job of systemd is awaited until its signal
//! `JobRemoved` (runc: `startUnit`, `stopUnit`).

use std::num::NonZeroUsize;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use serde::Serialize;
use tokio::sync::Mutex;
use zbus::connection::Builder;
use zbus::message::{Message, Type};
use zbus::{Connection, DynamicType, MatchRule, MessageStream, OwnedObjectPath, Variant};

use super::slice_properties::{PropertyValue, SliceProperty};

/// A failed call on systemd.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// Neither the system bus nor systemd's socket answers.
    #[error("connect to systemd on the system bus or by {PRIVATE_ADDRESS}")]
    Connect {
        /// The error on the socket, which is tried last.
        #[source]
        source: zbus::Error,
    },
    /// A method call.
    #[error("{method} {unit} by systemd")]
    Call {
        /// The method in D-Bus.
        method: &'static str,
        /// The unit; empty for a call on systemd as a whole.
        unit: String,
        /// The error reply, or that of the connection.
        #[source]
        source: zbus::Error,
    },
    /// A job ended without success.
    #[error("systemd's job for {unit} ended with result {result:?}")]
    Job {
        /// The unit.
        unit: String,
        /// `canceled`, `timeout`, `failed`, `dependency` or `skipped`.
        result: String,
    },
    /// systemd did not answer in time; it may still do what was requested.
    #[error("systemd did not complete {method} {unit} within {} s", limit.as_secs_f32())]
    Timeout {
        /// The method in D-Bus.
        method: &'static str,
        /// The unit.
        unit: String,
        /// The time limit.
        limit: Duration,
    },
}

/// The connection to systemd, the manager of this host's slices.
#[derive(Debug)]
pub struct SystemdManager {
    /// The socket of another bus than the host's, in tests.
    bus_socket: Option<PathBuf>,
    connection: Mutex<Option<SystemdConnection>>,
}

#[derive(Clone, Debug)]
struct SystemdConnection {
    bus: Connection,
    version: u32,
}

impl SystemdManager {
    /// Connects to the systemd of this host.
    pub async fn connect(limit: Duration) -> Result<Self, SystemdError> {
        Self::open(None, limit).await
    }

    /// Connects to the systemd on the bus that listens on this socket.
    #[cfg(test)]
    pub(crate) async fn connect_to(socket: &Path, limit: Duration) -> Result<Self, SystemdError> {
        Self::open(Some(socket.into()), limit).await
    }

    /// Connects with its first call.
    #[cfg(test)]
    pub(super) fn unconnected(socket: &Path) -> Self {
        Self { bus_socket: Some(socket.into()), connection: Mutex::new(None) }
    }

    /// The connection, for other calls.
    #[cfg(test)]
    pub(crate) async fn bus(&self) -> Result<Connection, SystemdError> {
        Ok(self.connected().await?.bus)
    }

    async fn open(bus_socket: Option<PathBuf>, limit: Duration) -> Result<Self, SystemdError> {
        let manager = Self { bus_socket, connection: Mutex::new(None) };
        let connecting = manager.connected();
        let timeout = || SystemdError::Timeout { method: "connect", unit: String::new(), limit };
        tokio::time::timeout(limit, connecting).await.map_err(|_| timeout())??;
        Ok(manager)
    }

    /// The version of systemd: 252, for example.
    pub(super) async fn version(&self, limit: Duration) -> Result<u32, SystemdError> {
        let timeout = |_| SystemdError::Timeout { method: "Get Version", unit: String::new(), limit };
        Ok(tokio::time::timeout(limit, self.connected()).await.map_err(timeout)??.version)
    }

    /// Starts a slice below its parent. One that exists is success.
    pub(super) async fn start_slice(&self, slice: &str, parent: &str, limit: Duration) -> Result<(), SystemdError> {
        let properties = [
            ("Description", Variant::from(format!("podwright pods {slice}"))),
            ("Wants", Variant::from(vec![parent])),
            ("MemoryAccounting", Variant::from(true)),
            ("CPUAccounting", Variant::from(true)),
            ("IOAccounting", Variant::from(true)),
            ("TasksAccounting", Variant::from(true)),
            // Otherwise systemd stops the slice, and all pods in it, when a shutdown begins.
            ("DefaultDependencies", Variant::from(false)),
        ];
        let auxiliary: [(&str, Vec<(&str, Variant<'_>)>); 0] = [];
        let body = (slice, "replace", &properties[..], &auxiliary[..]);
        match self.run_job("StartTransientUnit", slice, &body, limit).await {
            Err(error) if error.is_named(UNIT_EXISTS) => Ok(()),
            Err(error @ (SystemdError::Job { .. } | SystemdError::Timeout { .. })) => {
                let _ = self.reset_failed(slice, RESET_LIMIT).await;
                Err(error)
            }
            other => other,
        }
    }

    /// Sets properties until the next boot. systemd loads a slice that does not exist.
    pub(super) async fn set_properties(
        &self,
        slice: &str,
        properties: &[SliceProperty],
        limit: Duration,
    ) -> Result<(), SystemdError> {
        let value = |value: &PropertyValue| match value {
            PropertyValue::Number(number) => Variant::from(*number),
            PropertyValue::Bits(bits) => Variant::from(bits.clone()),
        };
        let properties: Vec<(&str, Variant<'_>)> = properties.iter().map(|(name, v)| (*name, value(v))).collect();
        self.call("SetUnitProperties", slice, &(slice, true, properties), limit).await.map(drop)
    }

    /// Stops a slice, which removes it. One that does not exist is success.
    pub(super) async fn stop_slice(&self, slice: &str, limit: Duration) -> Result<(), SystemdError> {
        match self.run_job("StopUnit", slice, &(slice, "replace"), limit).await {
            Err(error) if error.is_named(NO_SUCH_UNIT) => return Ok(()),
            // The cgroup is removed without systemd's help, as by runc's `stopUnit`.
            Err(SystemdError::Job { unit, result }) => {
                tracing::warn!(unit, reason = result, "systemd did not stop a slice")
            }
            other => other?,
        }
        // A failed unit stays loaded otherwise.
        let _ = self.reset_failed(slice, limit.min(RESET_LIMIT)).await;
        Ok(())
    }

    async fn reset_failed(&self, slice: &str, limit: Duration) -> Result<(), SystemdError> {
        self.call("ResetFailedUnit", slice, &(slice,), limit).await.map(drop)
    }

    /// Calls a method that queues a job, and waits for the end of the job.
    async fn run_job<B>(&self, method: &'static str, unit: &str, body: &B, limit: Duration) -> Result<(), SystemdError>
    where
        B: Serialize + DynamicType + Sync,
    {
        let limit = limit.min(JOB_LIMIT);
        let once = || async {
            let bus = self.connected().await?.bus;
            let failed = |source| SystemdError::Call { method, unit: unit.into(), source };
            // Listens before it calls: the job may end before the reply is here.
            let mut removed = jobs_of(&bus, unit).await.map_err(failed)?;
            let reply = call_on(&bus, method, body).await.map_err(failed)?;
            let job: OwnedObjectPath = reply.body().deserialize().map_err(failed)?;
            while let Some(signal) = removed.next().await {
                let signal = signal.map_err(failed)?;
                let body = signal.body();
                let (_, path, _, result): (u32, OwnedObjectPath, String, String) =
                    body.deserialize().map_err(failed)?;
                match result {
                    _ if path != job => {}
                    result if result == "done" => return Ok(()),
                    result => return Err(SystemdError::Job { unit: unit.into(), result }),
                }
            }
            Err(failed(zbus::Error::InvalidReply))
        };
        self.within(method, unit, limit, once).await
    }

    async fn call<B>(
        &self,
        method: &'static str,
        unit: &str,
        body: &B,
        limit: Duration,
    ) -> Result<Message, SystemdError>
    where
        B: Serialize + DynamicType + Sync,
    {
        let once = || async {
            let bus = self.connected().await?.bus;
            let failed = |source| SystemdError::Call { method, unit: unit.into(), source };
            call_on(&bus, method, body).await.map_err(failed)
        };
        self.within(method, unit, limit, once).await
    }

    /// Tries a second time, on a new connection, if the first one was lost meanwhile. All calls are idempotent.
    async fn within<T, F>(
        &self,
        method: &'static str,
        unit: &str,
        limit: Duration,
        once: impl Fn() -> F + Send,
    ) -> Result<T, SystemdError>
    where
        F: Future<Output = Result<T, SystemdError>>,
    {
        let twice = async {
            match once().await {
                Err(_) if self.is_lost().await => once().await,
                other => other,
            }
        };
        let timeout = |_| SystemdError::Timeout { method, unit: unit.into(), limit };
        tokio::time::timeout(limit, twice).await.map_err(timeout)?
    }

    async fn is_lost(&self) -> bool {
        self.connection.lock().await.as_ref().is_none_or(|connection| connection.bus.is_closed())
    }

    /// The connection; a new one if there is none or it was closed.
    async fn connected(&self) -> Result<SystemdConnection, SystemdError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.bus.is_closed()) {
            return Ok(connection.clone());
        }
        let bus = self.dial().await?;
        let version = version(&bus).await?;
        let connection = SystemdConnection { bus, version };
        *kept = Some(connection.clone());
        Ok(connection)
    }

    async fn dial(&self) -> Result<Connection, SystemdError> {
        let failed = |source| SystemdError::Connect { source };
        if let Some(socket) = &self.bus_socket {
            let address = format!("unix:path={}", socket.display());
            return on_bus(Builder::address(address.as_str())).await.map_err(failed);
        }
        // A bus that accepts and never answers must leave time for the socket.
        match tokio::time::timeout(BUS_LIMIT, on_bus(Builder::system())).await {
            Ok(Ok(bus)) => return Ok(bus),
            Err(_) => tracing::debug!("the system bus did not answer in time; trying systemd's own socket"),
            Ok(Err(error)) => tracing::debug!(%error, "the system bus does not answer; trying systemd's own socket"),
        }
        Builder::address(PRIVATE_ADDRESS).p2p().build().await.map_err(failed)
    }
}

impl SystemdError {
    /// Whether systemd replied with the error of this name.
    fn is_named(&self, name: &str) -> bool {
        matches!(self, Self::Call { source: zbus::Error::MethodError(found, ..), .. } if found.as_str() == name)
    }
}

/// Only a subscribed client of the bus gets signals; clients of the socket get them always.
async fn on_bus(builder: Builder<'_>) -> Result<Connection, zbus::Error> {
    let bus = builder.build().await?;
    call_on(&bus, "Subscribe", &()).await?;
    Ok(bus)
}

async fn call_on<B: Serialize + DynamicType + Sync>(
    bus: &Connection,
    method: &str,
    body: &B,
) -> Result<Message, zbus::Error> {
    bus.call_method(Some(SERVICE), PATH, Some(MANAGER), method, body).await
}

/// The ends of the jobs of one unit.
async fn jobs_of(bus: &Connection, unit: &str) -> Result<MessageStream, zbus::Error> {
    let rule = MatchRule::builder().msg_type(Type::Signal).interface(MANAGER).member("JobRemoved").arg(2, unit);
    MessageStream::for_match_rule(rule.build()?, bus, NonZeroUsize::new(JOBS_QUEUED_MAX)).await
}

async fn version(bus: &Connection) -> Result<u32, SystemdError> {
    let failed = |source| SystemdError::Call { method: "Get Version", unit: String::new(), source };
    let properties = Some("org.freedesktop.DBus.Properties");
    let reply = bus.call_method(Some(SERVICE), PATH, properties, "Get", &(MANAGER, "Version")).await.map_err(failed)?;
    let body = reply.body();
    let version: Variant<'_> = body.deserialize().map_err(failed)?;
    match version {
        Variant::Str(text) => Ok(parse_version(text.as_str())),
        _ => Err(failed(zbus::Error::IncorrectType)),
    }
}

/// The number in `252.38-1~deb12u1` or `v245-1.fc32`; 0, which has no new property, if there is none.
fn parse_version(text: &str) -> u32 {
    let digits: String = text.trim_start_matches('v').chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// The socket of systemd that root may use without a bus.
const PRIVATE_ADDRESS: &str = "unix:path=/run/systemd/private";
/// How long the system bus may take to accept a client.
const BUS_LIMIT: Duration = Duration::from_secs(3);
/// runc waits this long for a job.
const JOB_LIMIT: Duration = Duration::from_secs(30);
/// Cleaning up after a failure takes at most this long in addition.
const RESET_LIMIT: Duration = Duration::from_secs(2);
/// Signals about one unit that wait; a unit has one or two jobs at a time.
const JOBS_QUEUED_MAX: usize = 16;
