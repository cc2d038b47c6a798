//! Dynamic scaling of the loss, for gradients in f16: below 2⁻²⁴ they would be lost, above 65504
//! they would be infinite.
//!
//! # What it computes
//! The gradient of the loss is multiplied by a scale S ([`crate::loss`]), and with it everything
//! that is computed from it. The gradients of vectors are divided by S where the interaction writes
//! them, those of dense parameters where the optimiser reads them. S is a power of two, so that
//! neither rounds. A step in which a gradient is not finite changes nothing (it is *skipped*), and
//! S is halved; after [`LossScale::growth_interval`] steps without one, S is doubled:
//!
//! ```text
//! skipped                      S ← max(S / 2, SMALLEST)       good ← 0
//! otherwise                    good ← good + 1
//! good = growth_interval       S ← min(2 · S, LARGEST)        good ← 0
//! ```
//!
//! # Who finds what
//! [`crate::interaction`] raises [`LossScale::overflow`] where a gradient of a vector is not
//! finite: one number that ranks add up with their gradients. [`LossScale::check`] looks at that
//! number and at the gradients of dense parameters, after they were added up: so all ranks find the
//! same. Where each rank has the sums of a part of them only, it raises that number for its part
//! first ([`LossScale::raise`]). On a device it writes what it found into [`DeviceStep::skip`],
//! which every optimiser obeys; the host asks [`LossScale::skips`] on the CPU.
//! [`LossScale::adjust`] ends the step.
//!
//! # Shapes
//! The state is 1 × [`STATE_LEN`] f32, the overflow 1 × 1 f32; both start as [`LossScale::set`]
//! leaves them.
//!
//! # Work
//! On the CPU it blocks until done and allocates nothing; on a device each call enqueues one kernel
//! and nothing returns to the host.
//!
//! # Source
//! Micikevicius et al., "Mixed Precision Training", 2018, §3.2; PyTorch `torch.amp.GradScaler`
//! (factors, interval, first scale); NVIDIA Apex `LossScaler` (bounds).

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::{UnscaleArgs, builds};

use headlong_device::cuda::DevicePtr;
#[cfg(doc)]
use headlong_device::cuda::DeviceStep;
use headlong_device::{Arena, Device, Mat, Stream};
use std::ops::Range;

/// Numbers in the state: scale, 1 / scale, steps since it changed, steps skipped, whether this step
/// is to be skipped, whether the last one was, whether it was at the smallest scale; then, as bits,
/// which quad of the dense gradients is the first that is not finite.
pub const STATE_LEN: usize = 8;

/// The smallest scale: what overflows there is no matter of scale.
pub const SMALLEST: f32 = 1.0;

/// The largest scale.
pub const LARGEST: f32 = 16_777_216.0;

// Columns of the state, as in `loss_scale.cu`.
const SCALE: usize = 0;
const INVERSE: usize = 1;
const GOOD_STEPS: usize = 2;
const NUM_SKIPPED: usize = 3;
const SKIP: usize = 4;
const WAS_SKIPPED: usize = 5;
const WAS_SMALLEST: usize = 6;
const FIRST_BAD: usize = 7;

/// The bits where no gradient of a dense parameter was found.
const NO_QUAD: u32 = u32::MAX;

/// Counts are f32: they stop where it has no next integer.
const LARGEST_COUNT: f32 = 16_777_216.0;

/// The scale of one rank's model, and what its kernels need to keep it.
#[derive(Debug, Clone)]
pub struct LossScale {
    /// 1 × [`STATE_LEN`].
    pub state: Mat,
    /// 1 × 1: above zero where a gradient of a vector was not finite; ranks add it up before
    /// [`LossScale::check`].
    pub overflow: Mat,
    /// Steps without an overflow after which the scale is doubled.
    pub growth_interval: u32,
}

/// What [`LossScale::check`] and [`LossScale::raise`] look at.
#[derive(Debug, Clone)]
pub struct CheckArgs<'a> {
    /// Of all dense parameters.
    pub gradients: &'a Arena,
    /// Of these, the elements that this rank has the sums of; where these are a part, it begins and
    /// ends where cache lines do.
    pub elements: Range<usize>,
    /// What ranks have added up in 16 bits, which counts in place of `gradients`; on devices.
    pub summed: Option<&'a Mat>,
    /// The [`DeviceStep`]s that a device's optimisers read, for a check; the CPU has none.
    pub steps: Option<[DevicePtr; 2]>,
}

/// Where scaling is after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleState {
    /// What the loss of the next step is multiplied by.
    pub scale: f32,
    /// Steps since the scale has changed.
    pub good_steps: u32,
    /// Steps skipped since the run began.
    pub num_skipped: u32,
    /// Whether the last step was skipped.
    pub was_skipped: bool,
    /// Whether it was skipped at [`SMALLEST`], from where there is nowhere to go.
    pub was_smallest: bool,
    /// The first four dense gradients of which one was not finite, counted in fours, where
    /// [`Self::was_smallest`].
    pub first_bad: Option<u32>,
}

impl ScaleState {
    /// Before the first step.
    pub fn first(scale: f32) -> Self {
        Self {
            scale,
            good_steps: 0,
            num_skipped: 0,
            was_skipped: false,
            was_smallest: false,
            first_bad: None,
        }
    }

    /// From the numbers of a state.
    pub fn of(state: &[f32]) -> Self {
        Self {
            scale: state[SCALE],
            good_steps: state[GOOD_STEPS] as u32,
            num_skipped: state[NUM_SKIPPED] as u32,
            was_skipped: state[WAS_SKIPPED] != 0.0,
            was_smallest: state[WAS_SMALLEST] != 0.0,
            first_bad: Some(state[FIRST_BAD].to_bits()).filter(|&quad| quad != NO_QUAD),
        }
    }

    fn numbers(&self) -> [f32; STATE_LEN] {
        let mut state = [0.0; STATE_LEN];
        (state[SCALE], state[INVERSE]) = (self.scale, 1.0 / self.scale);
        (state[GOOD_STEPS], state[NUM_SKIPPED]) = (self.good_steps as f32, self.num_skipped as f32);
        (state[WAS_SKIPPED], state[WAS_SMALLEST]) =
            (f32::from(u8::from(self.was_skipped)), f32::from(u8::from(self.was_smallest)));
        state[FIRST_BAD] = f32::from_bits(self.first_bad.unwrap_or(NO_QUAD));
        state
    }
}

/// Whether the loss may be scaled by `scale`: a power of two between [`SMALLEST`] and [`LARGEST`].
pub fn is_scale(scale: f64) -> bool {
    let bounds = f64::from(SMALLEST)..=f64::from(LARGEST);
    bounds.contains(&scale) && (scale as u64).is_power_of_two() && scale.fract() == 0.0
}

impl LossScale {
    /// Puts scale and counters where they stand: the host's part, before the first step and when a
    /// checkpoint is loaded.
    ///
    /// # Errors
    /// A device that has failed.
    pub fn set(&self, state: &ScaleState) -> headlong_device::Result<()> {
        self.state.copy_from(&state.numbers())?;
        self.overflow.copy_from(&[0.0_f32])
    }

    /// Where scaling stands. Waits for the device.
    ///
    /// # Errors
    /// A device that has failed.
    pub fn get(&self) -> headlong_device::Result<ScaleState> {
        Ok(ScaleState::of(&self.state.to_vec::<f32>()?))
    }

    /// Looks for what is not finite: in gradients of dense parameters, and in [`Self::overflow`].
    pub fn check(&self, stream: &Stream, args: &CheckArgs<'_>) {
        match stream.device() {
            Device::Cpu => cpu::check(stream, self, args.gradients, args.elements.clone()),
            Device::Cuda(_) => cuda::check(stream, self, args),
        }
    }

    /// Raises [`Self::overflow`] where one of the gradients is not finite: of a rank that has the
    /// sums of a part only, before ranks add the overflow up.
    pub fn raise(&self, stream: &Stream, args: &CheckArgs<'_>) {
        match stream.device() {
            Device::Cpu => cpu::raise(stream, self, args.gradients, args.elements.clone()),
            Device::Cuda(_) => cuda::raise(stream, self, args),
        }
    }

    /// Ends the step: the next scale, the counters, and nothing found.
    pub fn adjust(&self, stream: &Stream) {
        match stream.device() {
            Device::Cpu => cpu::adjust(self),
            Device::Cuda(_) => cuda::adjust(stream, self),
        }
    }

    /// Whether [`Self::check`] found that this step must change nothing. Reads the state: on the
    /// CPU only.
    pub fn skips(&self) -> bool {
        self.state.read::<f32>().data()[SKIP] != 0.0
    }

    /// Scale and its inverse. Reads the state: on the CPU only.
    pub(crate) fn scale(&self) -> (f32, f32) {
        let state = self.state.read::<f32>();
        (state.data()[SCALE], state.data()[INVERSE])
    }

    /// Divides gradients by the scale, and raises [`Self::overflow`] where one is not finite: the
    /// CPU's pass after an interaction, whose kernels do it themselves.
    pub(crate) fn unscale(&self, stream: &Stream, gradients: &Mat) {
        cpu::unscale(stream, self, gradients);
    }
}
