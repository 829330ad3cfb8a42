//! podwright: flags → configuration → build → run → drain.

use std::process::ExitCode;

use clap::error::ErrorKind;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

mod check;
mod cli;
mod client;
mod cluster;
mod config;
mod logging;
mod logs;
mod man;
mod memory;
mod notify;
mod print;
mod replay;
mod wire;

use cli::{Ask, Cli, Command, RunFlags};
use config::Config;

fn main() -> ExitCode {
    let cli = match Cli::parse_from(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    match cli.command {
        Command::Run(flags) => run(&flags),
        Command::Get(flags) => client::run(&Ask::Get(flags)),
        Command::Describe(flags) => client::run(&Ask::Describe(flags)),
        Command::Events(flags) => client::run(&Ask::Events(flags)),
        Command::Explain(flags) => client::run(&Ask::Explain(flags)),
        Command::Apply(flags) => client::run(&Ask::Apply(flags)),
        Command::Delete(flags) => client::run(&Ask::Delete(flags)),
        Command::Restart(flags) => client::run(&Ask::Restart(flags)),
        Command::Stop(flags) => client::run(&Ask::Stop(flags)),
        Command::Logs(flags) => client::run(&Ask::Logs(flags)),
        Command::Exec(flags) => client::run(&Ask::Exec(flags)),
        Command::Wait(flags) => client::run(&Ask::Wait(flags)),
        Command::Check(flags) => check::run(&flags),
        Command::Replay(flags) => replay::run(&flags),
        Command::Version => {
            println!("podwright {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Command::Man { dir } => match man::write(&dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("podwright: write {}: {error}", dir.display());
                ExitCode::FAILURE
            }
        },
        Command::Completion { shell } => {
            Cli::complete(shell, &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

fn run(flags: &RunFlags) -> ExitCode {
    memory::limit_malloc_arenas();
    let config = match Config::load(flags) {
        Ok(config) => config,
        Err(error) => {
            // As people read it, and as the journal keeps it.
            eprintln!("podwright: {error}");
            return ExitCode::from(USAGE);
        }
    };
    logging::start(config.logging);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        // Decoding a pod goes deep, deepest without optimisation; pages that are not touched cost nothing.
        .thread_stack_size(2 << 20)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("podwright: start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        watch_signals(stop.clone())?;
        wire::run(config, stop).await
    });
    // A thread that hangs in a dead file system must not hold the exit up.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// SIGTERM or SIGINT: end gracefully, containers go on. The second one: at once.
fn watch_signals(stop: CancellationToken) -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        for round in 0.. {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            };
            if round > 0 {
                tracing::warn!("{name} again: ending at once");
                std::process::exit(1);
            }
            tracing::info!("{name}: ending; containers go on running");
            stop.cancel();
        }
    });
    Ok(())
}

/// Wrong flags, or a wrong configuration: restarting won't help.
const USAGE: u8 = 2;
