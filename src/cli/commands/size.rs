//! `flock size`

use std::path::PathBuf;

use clap::Args;

use crate::base::{Dtype, EngineKind};
use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::user;
use crate::config::{Source, parse_source};
use crate::edge::DiskWeights;
use crate::ports::{FilesError, Hub as _, Weights};
use crate::reconcile::look_on_hub;
use crate::report;
use crate::sizing::{self, SizeRequest, SizingError};
use crate::weights::Variant;

/// Say what a model needs, and on what it fits.
///
/// Read from the headers of its weights; the model is not loaded.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// hf:owner/name[@revision][#file-or-quantisation], a GGUF file, or a folder with config.json and weights or their
    /// index
    source: String,
    /// llama.cpp, vllm or sglang (default: what the format needs)
    #[arg(long)]
    engine: Option<EngineKind>,
    /// Tokens per request (default: min of the trained length and 32768)
    #[arg(long, value_name = "N")]
    context: Option<u64>,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    concurrency: u32,
    /// Element type of the KV cache, such as f16, fp8, q8_0
    #[arg(long, value_name = "T")]
    kv_dtype: Option<Dtype>,
    /// Tensor-parallel ranks; for llama.cpp the accelerators that share the layers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    tp: u32,
    /// Pipeline stages of whole layers, each over the ranks of --tp
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pp: u32,
    /// Judge against this: "24GiB", "2x24GiB" or a GPU's name (repeatable)
    #[arg(long = "accelerator", value_name = "A")]
    accelerators: Vec<String>,
    /// Only this variant, by id
    #[arg(long, value_name = "ID")]
    variant: Option<String>,
    /// Say where each figure is from
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &SizeArgs) -> Result<ExitCode, Failure> {
    let accelerators = args
        .accelerators
        .iter()
        .map(|text| {
            sizing::parse_accelerator_request(text).map_err(|error| Failure::new(ExitCode::Usage, error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut variants = variants(context, &args.source).await?;
    if let Some(id) = args.variant.as_deref().filter(|id| !variants.iter().any(|variant| variant.id == **id)) {
        let known: Vec<&str> = variants.iter().map(|variant| variant.id.as_str()).collect();
        return Err(Failure::new(ExitCode::Usage, format!("there is no variant `{id}`"))
            .hint(format!("found: {}", known.join(", "))));
    }
    variants.retain(|variant| args.variant.as_ref().is_none_or(|id| variant.id == *id));
    let request = SizeRequest {
        source: &args.source,
        engine: args.engine,
        context: args.context,
        concurrency: args.concurrency,
        kv_dtype: args.kv_dtype,
        tensor_parallel: args.tp,
        pipeline_parallel: args.pp,
        variant: args.variant.as_deref(),
        accelerators: &accelerators,
    };
    let answer = sizing::size_report(&variants, &request).map_err(sizing_failure)?;
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&answer.report))?,
        Format::Text => context.printer.data(&report::size_text(&answer, args.explain, &context.style()))?,
    }
    let refused = answer.report.splits.refused.iter().any(|refused| refused.tp == args.tp);
    Ok(if refused || answer.impossible { ExitCode::Infeasible } else { ExitCode::Success })
}

/// What a source holds. Of the hub, listing and headers are read.
async fn variants(context: &Context, source: &str) -> Result<Vec<Variant>, Failure> {
    if source.starts_with("hf:") {
        let parsed = parse_source(source)
            .map_err(|(text, hint)| Failure::new(ExitCode::Usage, format!("{source}: {text}")).hint(hint))?;
        if let Source::Hub { repository, revision, selector } = parsed {
            let hub = context.hub()?;
            context.printer.note(&format!("reading {source} on {}", hub.endpoint()));
            let found = look_on_hub(&hub, &repository, revision.as_deref(), selector.as_deref()).await?;
            if !found.repository.repository.eq_ignore_ascii_case(&repository) {
                context.printer.warning(&format!("{repository} is called {} now", found.repository.repository));
            }
            return Ok(found.variants);
        }
    }
    let path = absolute(source.strip_prefix("path:").unwrap_or(source))?;
    let found = DiskWeights::new().read(&path.to_string_lossy(), false).await.map_err(|error| match &error {
        FilesError::Missing { .. } if parse_source(&format!("hf:{source}")).is_ok() => {
            Failure::from(error).hint(format!("write hf:{source} for a repository of the hub"))
        }
        _ => Failure::from(error),
    })?;
    Ok(found.into_iter().map(|found| found.variant).collect())
}

fn sizing_failure(error: SizingError) -> Failure {
    Failure::new(ExitCode::Usage, error.to_string())
}

fn absolute(path: &str) -> Result<PathBuf, Failure> {
    std::path::absolute(user::expand(path)).map_err(|error| Failure::new(ExitCode::Failure, format!("{path}: {error}")))
}
