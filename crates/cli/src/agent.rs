//! `mpib agent`: serves the jobs of a host.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, io};

use clap::Args;
use mpib_agent::http::{self, Http, Listen, Listener, Web};
use mpib_agent::kept::{self, Kept};
use mpib_agent::user::Account;
use mpib_agent::{Config, Handle, Notify, Server, folder, look_once, passed_listener};
use mpib_host_view::Source;
use nccl_net_mpib_agent_iface::agent::paths::SOCKET_NAME;

use crate::output::{self, document};

/// Serves the jobs of this host: decides which part of each transfer goes on SUP (MPIB_MODE=1), and
/// which ports are out of use
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// Configuration file. Read again on SIGHUP. Default: /etc/mpib/agent.toml for root,
    /// $XDG_CONFIG_HOME/mpib/agent.toml (or ~/.config/mpib/agent.toml) for other users, if it exists
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of the socket and the hint file. Default: /run/mpib for root, $XDG_RUNTIME_DIR/mpib for
    /// other users, else /tmp/mpib
    #[arg(long, value_name = "FOLDER")]
    socket_dir: Option<PathBuf>,
    /// User as whom it serves, once root has made the folder, the sockets and the hint file. It needs no
    /// rights on the host
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Serve the processes of all users, as an agent of root does. An agent of another user serves that
    /// user and root
    #[arg(long)]
    all_users: bool,
    /// Where metrics, the API and the page are served: address and port, or "off". Default: what
    /// the configuration has, else 127.0.0.1:9119 unless that cannot be used
    #[arg(long, value_name = "ADDRESS")]
    http: Option<Listen>,
    /// TLS and passwords of that address, as a web file of Prometheus' exporters has them. Read again when
    /// it or one of its files has changed. Default: "web_config" in [http] of the configuration
    #[arg(long, value_name = "FILE")]
    web_config: Option<PathBuf>,
    /// Check the configuration and the web file, and exit
    #[arg(long)]
    check: bool,
    /// Print what the agent sees and would decide, as JSON, and exit. Serves nobody
    #[arg(long, conflicts_with = "check")]
    once: bool,
}

pub(crate) fn main(args: &AgentArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("mpib agent: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &AgentArgs) -> Result<(), String> {
    let root = nix::unistd::geteuid().is_root();
    let file = args.config.clone().map_or_else(|| default_config(root), |file| Ok(Some(file)))?;
    let config = match &file {
        Some(file) => Config::read(file).map_err(|bad| bad.to_string())?,
        None => Config::default(),
    };
    let web = args.web_config.clone().or_else(|| config.http.web_config.clone());
    let text = |e: io::Error| e.to_string();
    let web = web.filter(|_| !args.once).map(Web::read).transpose().map_err(text)?;
    if args.check {
        http::check_token_file(&config.http)?;
        if let Some((_, warnings)) = web {
            warnings?.iter().for_each(|warning| eprintln!("mpib agent: {warning}"));
        }
        let file = file.as_deref().map_or_else(|| "the default configuration".into(), Path::to_string_lossy);
        return output::print(&format!("{file}: good\n")).map_err(|e| e.to_string());
    }
    let place = args.socket_dir.clone();
    let place = place.unwrap_or_else(|| folder::default(root, env::var_os("XDG_RUNTIME_DIR").as_deref()));
    if args.once {
        let kept = Kept::read(&kept::path(&place)).unwrap_or_default();
        let seen = look_once(config, kept).map_err(text)?;
        return document::print(&seen).map_err(|e| e.to_string());
    }
    let passed = passed_listener(&place.join(SOCKET_NAME))?;
    let account = args.user.as_deref().map(Account::named).transpose()?;
    folder::prepare(&place).map_err(text)?;
    if let Some(account) = account {
        account.prepare(&place).map_err(text)?;
    }
    Server::raise_limits();
    let http_config = config.http.clone();
    let listen = args.http.or(config.http.listen);
    let server = match passed {
        Some(listener) => Server::on(listener, &place, config, file),
        None => Server::bind(&place, config, file),
    };
    let mut server = server.map_err(text)?;
    if args.all_users {
        server.serve_all_users(&place).map_err(text)?;
    }
    server.take_signals().map_err(text)?;
    // Jobs do not depend on what is served at the address.
    let (web, lines) =
        web.map(|(web, read)| (web, read.unwrap_or_else(|why| vec![http::not_served(&why)]))).unzip();
    let listener = listen_at(listen, web, &server.handle()).map_err(text)?;
    if listener.is_some() {
        server.handle().change(|agent| lines.into_iter().flatten().for_each(|line| agent.log(line)));
    }
    let _http = Http::start(listener, &place, Source::default(), server.handle()).map_err(text)?;
    if let Some(account) = account {
        account.assume().map_err(|e| format!("user {}: {e}", args.user.as_deref().unwrap_or_default()))?;
        // It was readable to root.
        if let Err(why) = http::check_token_file(&http_config) {
            server.handle().change(|agent| agent.log(why));
        }
        server.handle().reload();
    }
    if let Some(notify) = Notify::from_env()? {
        server.notify(notify);
    }
    server.run().map_err(text)
}

/// Listens for HTTP. Without an address in the configuration the agent does without one if the default
/// cannot be used: another user's agent may have the port.
fn listen_at(listen: Option<Listen>, web: Option<Web>, handle: &Handle) -> io::Result<Option<Listener>> {
    match listen {
        Some(Listen::Off) => Ok(None),
        Some(Listen::At(address)) => http::listen(address, web).map(Some),
        None => Ok(http::listen(http::DEFAULT, web)
            .map_err(|e| {
                handle.change(|agent| agent.log(format!("serves no HTTP: {e}; choose an address by --http")));
            })
            .ok()),
    }
}

/// Returns the configuration file that is read without --config, if it exists.
fn default_config(root: bool) -> Result<Option<PathBuf>, String> {
    let Some(file) = default_config_path(root) else { return Ok(None) };
    match file.try_exists() {
        Ok(exists) => Ok(exists.then_some(file)),
        Err(e) => Err(format!(
            "{}: {e}: user {} of this agent must be able to read it",
            file.display(),
            nix::unistd::geteuid()
        )),
    }
}

fn default_config_path(root: bool) -> Option<PathBuf> {
    if root {
        return Some("/etc/mpib/agent.toml".into());
    }
    let home = |name: OsString| Path::new(&name).join(".config");
    let config = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| env::var_os("HOME").map(home));
    config.map(|config| config.join("mpib/agent.toml"))
}
