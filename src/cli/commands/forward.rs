//! `flock forward`

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde::Serialize;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::base::InstanceState;
use crate::cli::args::{Format, FormatArg};
use crate::cli::context::{Config, Context, shell_words};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::inventory::{InstanceFacts, Request, Response};
use crate::ports::{ByteStream, Node, NodeError};
use crate::report;

use super::instances::{Access, Found, access, find_instances, first_ready, instances_of};

/// Most connections at once.
const CONNECTIONS: usize = 256;
/// How long it is believed that the instance is where it was: its port may belong to another one afterwards.
const BELIEVED: Duration = Duration::from_secs(2);

/// Open a local port to a model's instance.
///
/// Through SSH, until it is interrupted. Only programs on this machine reach it. The engine wants the instance's own
/// key with every request (`Authorization: Bearer KEY`); `--env` prints it for a shell. A lost connection is made
/// again, and an instance that moved is found again.
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// The model
    name: String,
    /// The local port (default: a free one)
    #[arg(long, value_name = "P")]
    port: Option<u16>,
    /// Only this replica (default: the first that is ready)
    #[arg(long)]
    replica: Option<u32>,
    /// Print the base URL and the key as shell variables
    #[arg(long)]
    env: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// What is printed once the port is open.
#[derive(Serialize)]
struct Opened<'a> {
    format: u32,
    model: &'a str,
    replica: u32,
    node: &'a str,
    instance: &'a str,
    /// The name that requests give.
    served_name: &'a str,
    base_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<&'a str>,
}

/// Where the instance is.
#[derive(Clone)]
struct Way {
    node: Arc<dyn Node>,
    facts: InstanceFacts,
    seen: Instant,
}

/// An open forward.
struct Forward<'a> {
    context: &'a Context,
    config: &'a Config,
    args: &'a ForwardArgs,
    way: Mutex<Way>,
}

/// Runs the command.
pub async fn run(context: &Context, args: &ForwardArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let found = find_instances(context, &config, &args.name, args.replica).await?;
    let Found { node, facts } = first_ready(&args.name, &found)?;
    let Access { key, served_name, .. } = access(node.as_ref(), &facts.instance).await?;
    let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port.unwrap_or(0)));
    let listener = TcpListener::bind(wanted).await.map_err(|error| {
        Failure::new(ExitCode::Failure, format!("cannot listen on {wanted}: {error}"))
            .hint("without --port, a free one is taken")
    })?;
    let base_url = format!("http://{}/v1", listener.local_addr()?);
    let opened = Opened {
        format: 1,
        model: &facts.model,
        replica: facts.replica,
        node: node.name(),
        instance: &facts.instance,
        served_name: &served_name,
        base_url: &base_url,
        api_key: args.env.then(|| key.reveal().as_str()),
    };
    match (args.format.format, args.env) {
        (Format::Json, _) => context.printer.data(&report::json(&opened))?,
        (Format::Text, true) => {
            for (name, value) in [("OPENAI_BASE_URL", base_url.as_str()), ("OPENAI_API_KEY", key.reveal())] {
                context.printer.data(&format!("export {name}={}", shell_words(&[value.to_owned()])))?;
            }
        }
        (Format::Text, false) => context.printer.data(&base_url)?,
    }
    let key_hint = if args.env { "" } else { " Requests need the instance's key: --env prints it." };
    context.printer.note(&format!(
        "forwarding to {}/{} on {} (model name `{served_name}`) until Ctrl-C.{key_hint}",
        facts.model,
        facts.replica,
        node.name()
    ));
    let way = Way { node: Arc::clone(node), facts: facts.clone(), seen: Instant::now() };
    Forward { context, config: &config, args, way: Mutex::new(way) }.serve(listener).await
}

impl Forward<'_> {
    /// Serves connections side by side; ends only with the process.
    async fn serve(&self, listener: TcpListener) -> Result<ExitCode, Failure> {
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if open.len() < CONNECTIONS => match accepted {
                    Ok((socket, _)) => open.push(self.connection(socket)),
                    // Out of descriptors, or a client that left while it waited: neither ends the forward.
                    Err(error) => {
                        tracing::debug!(%error, "a connection was not accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(()) = open.next(), if !open.is_empty() => {}
            }
        }
    }

    async fn connection(&self, mut socket: TcpStream) {
        match self.open().await {
            Ok(mut stream) => {
                if let Err(error) = copy_bidirectional(&mut socket, &mut stream).await {
                    tracing::debug!(%error, "a forwarded connection ended");
                }
            }
            Err(failure) => self.context.printer.error(&failure.message, failure.hint.as_deref()),
        }
    }

    /// A stream to the instance; where that fails, it is looked for once more.
    async fn open(&self) -> Result<Box<dyn ByteStream>, Failure> {
        let mut way = self.way.lock().await;
        let mut trouble: Option<NodeError> = None;
        for _ in 0..2 {
            if trouble.is_some() || way.seen.elapsed() > BELIEVED {
                self.look(&mut way, trouble.is_some()).await?;
            }
            match way.node.open_port(way.facts.port).await {
                Ok(stream) => return Ok(stream),
                Err(error) => trouble = Some(error),
            }
        }
        Err(trouble.map_or_else(|| Failure::silent(ExitCode::Failure), Failure::from))
    }

    /// Makes sure that the instance is where it was, or finds it again.
    async fn look(&self, way: &mut Way, after_trouble: bool) -> Result<(), Failure> {
        let answer = way.node.call(Request::Instances).await;
        if let Ok(Response::Instances { instances, .. }) = answer {
            let same = instances.into_iter().find(|facts| facts.instance == way.facts.instance);
            if let Some(facts) = same.filter(|facts| facts.state == InstanceState::Ready) {
                *way = Way { node: Arc::clone(&way.node), facts, seen: Instant::now() };
                return Ok(());
            }
        }
        let facts = self.context.ask_nodes(&self.config.desired, None).await;
        let found = instances_of(&facts, &self.args.name, self.args.replica);
        let Found { node, facts } = first_ready(&self.args.name, &found)?;
        let moved = facts.instance != way.facts.instance || node.name() != way.node.name();
        if moved {
            let text = format!("now forwarding to {}/{} on {}", facts.model, facts.replica, node.name());
            let hint = "the key is another: start the forward anew where clients need it";
            self.context.printer.note(&format!("{text}; {hint}"));
        } else if after_trouble {
            tracing::debug!(node = node.name(), "connected again");
        }
        *way = Way { node: Arc::clone(node), facts: facts.clone(), seen: Instant::now() };
        Ok(())
    }
}
