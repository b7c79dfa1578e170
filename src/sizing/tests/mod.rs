//! Cases with a known right answer: published models, engine logs, properties.

use super::*;
use crate::base::{Bytes, Dtype, EngineKind, GIB, MIB, WeightFormat};
use crate::engine;
use crate::inventory::{Accelerator, AcceleratorMemory, NodeFacts, Ram};
use crate::weights::{Architecture, Mla, PerLayer, Quantisation, Sliding, Tensors, Variant};
use samples::*;

mod calibrated;
mod cases;
mod logs;
mod properties;
mod samples;
