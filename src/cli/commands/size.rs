//! `flock size`

use std::path::PathBuf;

use clap::Args;

use crate::base::{Dtype, EngineKind};
use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::user;
use crate::edge::DiskWeights;
use crate::ports::Weights;
use crate::report;
use crate::sizing::{self, SizeRequest, SizingError};

/// Say what a model needs, and on what it fits.
///
/// Read from the headers of its weights; the model is not loaded.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// A GGUF file, or a folder with config.json and weights or their index
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
    /// Pipeline stages
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1))]
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
    if args.source.starts_with("hf:") {
        return Err(Failure::new(
            ExitCode::Failure,
            "hf: sources need the Hugging Face hub, which this version of flock does not read",
        )
        .hint("download config.json and the weights' index or headers, and name their folder"));
    }
    let accelerators = args
        .accelerators
        .iter()
        .map(|text| {
            sizing::parse_accelerator_request(text).map_err(|error| Failure::new(ExitCode::Usage, error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let path = absolute(args.source.strip_prefix("path:").unwrap_or(&args.source))?;
    let found = DiskWeights::new().read(&path.to_string_lossy(), false).await?;
    let variants: Vec<_> = found.into_iter().map(|found| found.variant).collect();
    if let Some(id) = args.variant.as_deref().filter(|id| !variants.iter().any(|variant| variant.id == **id)) {
        let known: Vec<&str> = variants.iter().map(|variant| variant.id.as_str()).collect();
        return Err(Failure::new(ExitCode::Usage, format!("there is no variant `{id}`"))
            .hint(format!("found: {}", known.join(", "))));
    }
    let request = SizeRequest {
        source: &args.source,
        engine: args.engine,
        context: args.context,
        concurrency: args.concurrency,
        kv_dtype: args.kv_dtype,
        tensor_parallel: args.tp,
        variant: args.variant.as_deref(),
        accelerators: &accelerators,
    };
    let answer = sizing::size_report(&variants, &request).map_err(sizing_failure)?;
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&answer.report))?,
        Format::Text => context.printer.data(&report::size_text(&answer, args.explain, &context.style()))?,
    }
    let refused = answer.report.splits.refused.iter().any(|refused| refused.tp == args.tp);
    Ok(if refused { ExitCode::Infeasible } else { ExitCode::Success })
}

fn sizing_failure(error: SizingError) -> Failure {
    Failure::new(ExitCode::Usage, error.to_string())
}

fn absolute(path: &str) -> Result<PathBuf, Failure> {
    std::path::absolute(user::expand(path)).map_err(|error| Failure::new(ExitCode::Failure, format!("{path}: {error}")))
}
