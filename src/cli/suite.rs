//! Flags of `suite` and `merge`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;
use history::ClusterKind;

use super::values::{Format, cluster};
use crate::shard::Shard;

/// The part of the work that this machine does.
#[derive(Debug, Args)]
pub struct ShardArgs {
    /// Do the work of this shard only: 2/8 is the second of eight. `harness merge` joins the results of all shards
    #[arg(long, value_name = "N/OF")]
    shard: Option<Shard>,
    /// The same, but counted from 0, as Kubernetes' JOB_COMPLETION_INDEX counts: 0/8 is the first of eight
    #[arg(long, value_name = "INDEX/OF", value_parser = Shard::from_zero, conflicts_with = "shard")]
    shard_index: Option<Shard>,
}

impl ShardArgs {
    /// The shard; all of the work without a flag.
    pub fn get(&self) -> Shard {
        self.shard.or(self.shard_index).unwrap_or(Shard::WHOLE)
    }

    /// The name of the flag that was given.
    pub fn flag(&self) -> &'static str {
        if self.shard_index.is_some() { "shard-index" } else { "shard" }
    }
}

/// A suite: a file of claims, each with a plan, the evidence that it needs, and the verdicts that it must give.
#[derive(Debug, Args)]
pub struct SuiteArgs {
    /// The suite files
    #[arg(value_name = "FILE", required = true)]
    pub suites: Vec<PathBuf>,
    /// Cluster of every run: docker, or sim
    #[arg(long, value_parser = cluster, default_value = "docker")]
    pub cluster: ClusterKind,
    /// Run every row N times, each time with another seed
    #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN)]
    pub repeat: NonZeroU32,
    /// Only these rows, comma-separated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub only: Vec<String>,
    #[command(flatten)]
    pub shard: ShardArgs,
    /// Run the rest too after a run that is not as expected, or that the harness could not make
    #[arg(long)]
    pub keep_going: bool,
    /// Continue an interrupted suite: skip the runs that it has recorded. Runs of another build of the harness are
    /// judged again from their histories, or made again
    #[arg(long)]
    pub resume: bool,
    /// Write the results to this file as JUnit XML: a test case for each property of each run
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
    /// Directory of the run directories, and of the suite's own record
    #[arg(long, default_value = "runs", help_heading = "Output")]
    pub runs: PathBuf,
}

/// The results of all shards: of one or several suites, or of an exploration.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The --runs directories of a suite's shards, or the --save directories of an exploration's; or their files
    /// suite-NAME-CLUSTER-NofM.jsonl, explore-NofM.json
    #[arg(value_name = "DIR", required = true)]
    pub results: Vec<PathBuf>,
    /// Write the results of suites to this file as JUnit XML
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
}
