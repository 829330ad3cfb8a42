//! `podwright image`: the images of the embedded engine, of a running agent or else directly in their store and under its lock.
//!
//! Both ways do the same work with the same results and errors ([`NodeImages`]); only the transport differs.
//!
//! Exit codes: 0 success; 1 failure; 2 wrong usage.

mod archive_file;
mod open;
mod progress;

use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use futures::StreamExt;
use jiff::Timestamp;
use podwright_image::{ImageStoreError, RegistryError};
use podwright_server::local::{
    FreedContent, ImageErrorKind, ImageLine, ImageLines, ImageRequestError, NodeImage, NodeImages, PullRequest,
};
use podwright_tasks::error_chain;

use crate::cli::{ImageCommand, ImageFlags, ImageOutput, ImagePullFlags};
use crate::client::ClientError;
use crate::print::amounts::size;
use crate::print::{Paint, TextTable, age_at, plain};
use archive_file::{ArchiveFile, ArchiveInput};
use open::OpenImages;
use progress::ProgressView;

/// Runs the command.
pub(crate) fn run(flags: &ImageFlags) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("podwright: start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = io::stdout();
    let executed = runtime.block_on(execute(flags, &mut out));
    // A pending read of an archive must not block the exit.
    runtime.shutdown_background();
    match executed.and_then(|()| out.flush().map_err(ImageCommandError::Print)) {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe is not a failure.
        Err(ImageCommandError::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = out.flush();
            eprintln!("podwright: {}", error_chain(&error));
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ImageCommandError {
    #[error("{}", in_use(dir, pid, command.as_deref()))]
    InUse {
        dir: PathBuf,
        pid: String,
        /// Of that process; `None` if it is not known.
        command: Option<String>,
    },
    #[error(
        "the agent reads the hosts.toml files of its --engine-registries directory: put yours there; --hosts-dir is for a store \
         that no agent uses"
    )]
    HostsDir,
    #[error("open the images in {}", .0.display())]
    Open(PathBuf, #[source] Box<ImageStoreError>),
    #[error(transparent)]
    Agent(ClientError),
    #[error(transparent)]
    Request(#[from] ImageRequestError),
    #[error("{}", .0.display())]
    Load(PathBuf, #[source] ImageRequestError),
    #[error("{}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("save to {0}")]
    Save(String, #[source] ImageRequestError),
    #[error("write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("an archive is not written to a terminal; give a file with --output, or redirect stdout")]
    Terminal,
    #[error("read the password from stdin")]
    Password(#[source] io::Error),
    #[error("start the pull")]
    Registry(#[from] RegistryError),
    #[error("make the image safe from a power loss")]
    Sync(#[source] Box<ImageStoreError>),
    #[error("print the result")]
    Print(#[from] io::Error),
}

/// The holder of the lock may be an agent elsewhere, `podwright engine`, or another command; each of them has a way out.
fn in_use(dir: &Path, pid: &str, command: Option<&str>) -> String {
    let command = command.map(|command| format!(" ({command})")).unwrap_or_default();
    format!(
        "the images in {} are in use by process {pid}{command}. If it is an agent, give its --run-dir, and the command asks the \
         agent; if it is podwright engine, use crictl on its socket; if it is another podwright image, try again when it has ended",
        dir.display()
    )
}

async fn execute(flags: &ImageFlags, out: &mut dyn Write) -> Result<(), ImageCommandError> {
    let opened = open::open(flags).await?;
    let images = &*opened.images;
    match &flags.command {
        ImageCommand::Pull(flags) => pull(&opened, flags, out).await,
        ImageCommand::Load { files } => load(images, files, out).await,
        ImageCommand::Save { images: names, output } => save(images, names, output.as_deref()).await,
        ImageCommand::Ls { quiet, output } => list(images, *quiet, *output, out).await,
        ImageCommand::Rm { images: names, force } => {
            show_removal(images.remove(names.clone(), *force), false, out).await
        }
        ImageCommand::Prune => show_removal(images.prune(), true, out).await,
        ImageCommand::Inspect { images: names } => {
            let all = images.inspect(names.clone()).await?;
            Ok(writeln!(out, "{:#}", serde_json::Value::from(all))?)
        }
    }
}

async fn pull(opened: &OpenImages, flags: &ImagePullFlags, out: &mut dyn Write) -> Result<(), ImageCommandError> {
    let password = password(flags)?;
    for image in &flags.images {
        let (username, password) = (flags.username.clone(), password.clone());
        let mut lines = opened.images.pull(PullRequest { image: image.clone(), username, password });
        let mut view = (!flags.quiet).then(ProgressView::for_stderr);
        let mut pulled = None;
        while let Some(line) = lines.next().await {
            match line {
                Ok(ImageLine::Progress(layers)) => view.iter_mut().for_each(|view| view.show(image, &layers)),
                Ok(ImageLine::Image(image)) => pulled = Some(image.id),
                Ok(_) => {}
                Err(error) => {
                    view.iter_mut().for_each(ProgressView::end);
                    return Err(error.into());
                }
            }
        }
        view.iter_mut().for_each(ProgressView::end);
        let ended =
            || ImageRequestError::new(ImageErrorKind::Failed, format!("the pull of {image} ended without a result"));
        writeln!(out, "{}", pulled.ok_or_else(ended)?)?;
    }
    opened.sync().map_err(|error| ImageCommandError::Sync(Box::new(error)))
}

async fn load(images: &dyn NodeImages, files: &[PathBuf], out: &mut dyn Write) -> Result<(), ImageCommandError> {
    for path in files {
        let input = ArchiveInput::open(path).map_err(|error| ImageCommandError::Read(path.clone(), error))?;
        let read_error = input.read_error();
        let mut lines = images.load(Box::new(input));
        while let Some(line) = lines.next().await {
            let line = line.map_err(|error| match read_error.take() {
                Some(read) => ImageCommandError::Read(path.clone(), read),
                None => ImageCommandError::Load(path.clone(), error),
            })?;
            match line {
                ImageLine::Image(image) => writeln!(out, "{} {}", image.id, first_name(&image))?,
                ImageLine::Kept(containers) => explain_kept(containers),
                _ => {}
            }
        }
    }
    Ok(())
}

async fn save(images: &dyn NodeImages, names: &[String], output: Option<&Path>) -> Result<(), ImageCommandError> {
    let names = names.to_vec();
    let Some(path) = output else {
        if io::stdout().is_terminal() {
            return Err(ImageCommandError::Terminal);
        }
        let saved = images.save(names, Box::new(io::stdout())).await;
        return saved.map_err(|error| ImageCommandError::Save("stdout".into(), error));
    };
    let failed = |error| ImageCommandError::Write(path.to_owned(), error);
    let file = ArchiveFile::create(path).map_err(failed)?;
    let writer = file.writer().map_err(failed)?;
    let saved = images.save(names, Box::new(writer)).await;
    saved.map_err(|error| ImageCommandError::Save(path.display().to_string(), error))?;
    file.complete().map_err(failed)
}

async fn list(
    images: &dyn NodeImages,
    quiet: bool,
    output: Option<ImageOutput>,
    out: &mut dyn Write,
) -> Result<(), ImageCommandError> {
    let images = images.list().await?;
    if quiet {
        return Ok(images.iter().try_for_each(|image| writeln!(out, "{}", image.id))?);
    }
    if output == Some(ImageOutput::Json) {
        return Ok(writeln!(out, "{:#}", serde_json::to_value(&images).expect("plain data"))?);
    }
    let now = Timestamp::now();
    let mut table = TextTable::new(&["IMAGE", "ID", "SIZE", "AGE"]);
    for image in &images {
        let names = if image.tags.is_empty() { vec![first_name(image)] } else { image.tags.clone() };
        for name in names {
            let id = image.id.trim_start_matches("sha256:").chars().take(12).collect();
            let cells = [plain(&name), id, size(image.size), age_at(Some(image.stored_at), now)];
            table.row(cells.into_iter().map(|cell| (cell, None)).collect());
        }
    }
    Ok(write!(out, "{}", table.render(Paint::for_stdout()))?)
}

async fn show_removal(mut lines: ImageLines, show_freed: bool, out: &mut dyn Write) -> Result<(), ImageCommandError> {
    while let Some(line) = lines.next().await {
        match line? {
            ImageLine::Removed(ids) => ids.iter().try_for_each(|id| writeln!(out, "{id}"))?,
            ImageLine::Freed(FreedContent { blobs, layers, bytes }) if show_freed => {
                eprintln!("{} freed: {blobs} blobs, {layers} layers", size(bytes));
            }
            ImageLine::Kept(containers) => explain_kept(containers),
            _ => {}
        }
    }
    Ok(())
}

fn explain_kept(containers: usize) {
    eprintln!("podwright: content stays until the engine runs again: {containers} containers may use it");
}

/// `None`: the pull is anonymous.
fn password(flags: &ImagePullFlags) -> Result<Option<String>, ImageCommandError> {
    if flags.username.is_none() {
        return Ok(None);
    }
    let mut password = String::new();
    io::stdin().take(PASSWORD_MAX).read_to_string(&mut password).map_err(ImageCommandError::Password)?;
    Ok(Some(password.trim_end_matches(['\r', '\n']).to_owned()))
}

fn first_name(image: &NodeImage) -> String {
    image.tags.first().or(image.digests.first()).map_or_else(|| "<none>".to_owned(), |name| plain(name))
}

/// Bytes of a password.
const PASSWORD_MAX: u64 = 64 << 10;
