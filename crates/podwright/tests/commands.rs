//! The commands as a user types them, against the local API of an agent without a runtime: no containerd is needed.

#[path = "commands/agent_ends.rs"]
mod agent_ends;
#[path = "commands/applied.rs"]
mod applied;
#[path = "commands/completion.rs"]
mod completion;
#[path = "commands/copies.rs"]
mod copies;
#[path = "commands/engine_start.rs"]
mod engine_start;
#[path = "commands/harness.rs"]
mod harness;
#[path = "commands/host_processes.rs"]
mod host_processes;
#[path = "commands/images.rs"]
mod images;
#[path = "commands/install.rs"]
mod install;
#[path = "commands/logs.rs"]
mod logs;
#[path = "cli/pty.rs"]
mod pty;
#[path = "commands/shown.rs"]
mod shown;
#[path = "commands/streams.rs"]
mod streams;
#[path = "commands/targets.rs"]
mod targets;
#[path = "commands/top.rs"]
mod top;
#[path = "commands/verb_rows.rs"]
mod verb_rows;
#[path = "commands/verb_table.rs"]
mod verb_table;
