//! What waits for what: weights before the start that reads them, memory that is freed before it is taken,
//! weights before the stop that makes room for their instance. Then the numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::diff::Draft;
use super::{Because, Observed, PlannedInstance, Step, Verb, workers};

/// Something of which there is so much: an accelerator's memory, or with `None` a node's host memory.
type Resource = (String, Option<String>);
type Amounts = BTreeMap<Resource, u64>;

/// Bytes that a planned instance takes.
fn planned_use(instance: &PlannedInstance) -> Amounts {
    let mut amounts: Amounts = instance
        .memory
        .per_accelerator
        .iter()
        .map(|bytes| ((instance.node.clone(), Some(bytes.uuid.clone())), bytes.total_bytes))
        .collect();
    amounts.insert((instance.node.clone(), None), instance.memory.host.total_bytes);
    amounts
}

/// Bytes that all instances together may take, for everything that a planned instance uses.
fn capacities(planned: &[PlannedInstance]) -> Amounts {
    let mut found = Amounts::new();
    let mut note = |resource: Resource, bytes: u64| {
        // 0 is "not known"; otherwise all instances on a device state the same capacity.
        if bytes > 0 {
            found.entry(resource).and_modify(|known| *known = (*known).min(bytes)).or_insert(bytes);
        }
    };
    for instance in planned {
        for bytes in &instance.memory.per_accelerator {
            note((instance.node.clone(), Some(bytes.uuid.clone())), bytes.capacity_bytes);
        }
        note((instance.node.clone(), None), instance.memory.host.capacity_bytes);
    }
    found
}

/// Bytes that an observed instance holds: as planned when it was started, else everything there is.
fn observed_use(
    observed: &Observed,
    planned: &BTreeMap<(&str, &str), &PlannedInstance>,
    capacity: &Amounts,
) -> Amounts {
    if !observed.holds_memory() {
        return Amounts::new();
    }
    if let Some(same) = planned.get(&(observed.instance.as_str(), observed.node.as_str())) {
        return planned_use(same);
    }
    let told = observed.spec.as_ref();
    let mut amounts = Amounts::new();
    for (index, uuid) in observed.accelerators.iter().enumerate() {
        let resource = (observed.node.clone(), Some(uuid.clone()));
        let bytes = told.and_then(|spec| spec.planned_bytes.get(index).copied());
        let bytes = bytes.unwrap_or_else(|| capacity.get(&resource).copied().unwrap_or(0));
        amounts.insert(resource, bytes);
    }
    amounts.insert((observed.node.clone(), None), told.map_or(0, |spec| spec.planned_host_bytes));
    amounts
}

/// By how much whole MiB may differ from bytes, for each instance.
const ROUNDING: u64 = 2 << 20;

/// Where all that runs comes to more than there may be, what keeps running counts as its share of that, as placement has
/// it: its memory is its own already, whatever the figures say. What comes in the place of something else then fits.
fn count_shares<'a>(capacity: &mut Amounts, before: &Amounts, standing: impl Iterator<Item = &'a Amounts>) {
    let most = capacity.clone();
    for (resource, bytes) in standing.flatten().filter(|(_, bytes)| **bytes > 0) {
        let (Some(most), Some(all)) = (most.get(resource), before.get(resource)) else { continue };
        if all > most {
            let share = u128::from(*bytes) * u128::from(*most) / u128::from(*all);
            let spared = bytes.saturating_sub(u64::try_from(share).unwrap_or(*bytes)).saturating_add(ROUNDING);
            capacity.entry(resource.clone()).and_modify(|capacity| *capacity = capacity.saturating_add(spared));
        }
    }
}

/// What a draft takes when it begins and frees when it ends.
#[derive(Debug, Clone, Default)]
struct Effect {
    takes: Amounts,
    frees: Amounts,
}

/// Everything that deciding the order needs.
struct Scheduler<'a> {
    planned: &'a [PlannedInstance],
    observed: &'a [Observed],
    held: Vec<Amounts>,
    capacity: Amounts,
    before: Amounts,
    effects: Vec<Effect>,
    drafts: Vec<Draft>,
    overflow: BTreeSet<usize>,
}

/// Drafts with what they wait for.
pub(super) struct Scheduled {
    /// The drafts; each knows what must be done before it.
    pub drafts: Vec<Draft>,
    /// Those that ask for more memory than there is beside what keeps running.
    pub overflow: BTreeSet<usize>,
}

/// Adds what every draft needs to be done before it. Drafts whose places wait for each other are split into a stop
/// and a start.
///
/// `ports` says which planned instance takes ports of which observed one: it waits until that has ended.
pub(super) fn schedule(
    mut drafts: Vec<Draft>,
    planned: &[PlannedInstance],
    observed: &[Observed],
    ports: &[(usize, usize)],
) -> Scheduled {
    // A move that takes its own ports gives them back before it starts.
    for draft in drafts.iter_mut().filter(|draft| draft.step.verb == Verb::Move) {
        let own = |(new, old): &(usize, usize)| (Some(*new), Some(*old)) == (draft.new, draft.old);
        draft.step.interrupts |= ports.iter().any(own);
    }
    let mut capacity = capacities(planned);
    let by_id = planned.iter().map(|p| ((p.instance.as_str(), p.node.as_str()), p)).collect();
    let held: Vec<Amounts> = observed.iter().map(|o| observed_use(o, &by_id, &capacity)).collect();
    let mut before = Amounts::new();
    for (resource, bytes) in held.iter().flatten() {
        add(&mut before, resource, *bytes);
    }
    let moved: BTreeSet<usize> = drafts.iter().filter_map(|draft| draft.old).collect();
    let standing = held.iter().enumerate().filter(|(index, _)| !moved.contains(index)).map(|(_, amounts)| amounts);
    count_shares(&mut capacity, &before, standing);
    let (effects, overflow) = (Vec::new(), BTreeSet::new());
    let mut scheduler = Scheduler { planned, observed, held, capacity, before, effects, drafts, overflow };
    scheduler.effects = scheduler.drafts.iter().map(|draft| scheduler.effect(draft)).collect();
    workers::order(&mut scheduler.drafts, observed);
    scheduler.run();
    scheduler.ports(ports);
    scheduler.stop_after_start();
    Scheduled { drafts: scheduler.drafts, overflow: scheduler.overflow }
}

impl Scheduler<'_> {
    fn effect(&self, draft: &Draft) -> Effect {
        let new = draft.new.map(|index| planned_use(&self.planned[index])).unwrap_or_default();
        let old = draft.old.map(|index| self.held[index].clone()).unwrap_or_default();
        match draft.step.verb {
            Verb::Fetch | Verb::Adopt => Effect::default(),
            // An interrupting move and a change give back before they take, so only the difference counts.
            Verb::Move if !draft.step.interrupts => Effect { takes: new, frees: old },
            Verb::Start | Verb::Stop | Verb::Change | Verb::Restart | Verb::Move => {
                Effect { takes: minus(&new, &old), frees: minus(&old, &new) }
            }
        }
    }

    /// Plays the drafts one after another, always the first that fits, and notes what had to be freed for it.
    fn run(&mut self) {
        let mut usage = self.before.clone();
        let mut taken = Amounts::new();
        let mut freed: BTreeMap<Resource, Vec<(usize, u64)>> = BTreeMap::new();
        let all: BTreeSet<Turn> =
            (0..self.drafts.len()).map(|index| (turn(self.drafts[index].step.verb), index)).collect();
        let of = |may: &dyn Fn(usize) -> bool| all.iter().copied().filter(|(_, index)| may(*index)).collect();
        let mut queue = Queue {
            interruptible: of(&|index| self.may_interrupt(index)),
            splittable: of(&|index| self.may_split(index)),
            open: all.clone(),
            pending: all,
            waits: BTreeMap::new(),
        };
        while let Some(index) = self.next(&mut queue, &usage) {
            let needs = self.freed_first(index, &mut taken, &freed);
            self.drafts[index].needs.extend(needs);
            let effect = &self.effects[index];
            for (resource, bytes) in &effect.takes {
                add(&mut usage, resource, *bytes);
            }
            for (resource, bytes) in effect.frees.iter().filter(|(_, bytes)| **bytes > 0) {
                let left = usage.entry(resource.clone()).or_default();
                *left = left.saturating_sub(*bytes);
                freed.entry(resource.clone()).or_default().push((index, *bytes));
                queue.wake(resource);
            }
        }
    }

    /// The next draft that fits; where none does, a move is made to interrupt, or one is split.
    fn next(&mut self, queue: &mut Queue, usage: &Amounts) -> Option<usize> {
        loop {
            while let Some(found) = queue.open.pop_first() {
                match self.lacks(found.1, usage) {
                    None => {
                        queue.pending.remove(&found);
                        return Some(found.1);
                    }
                    Some(resource) => queue.waits.entry(resource.clone()).or_default().push(found),
                }
            }
            let first = queue.pending.first().copied()?;
            if let Some(found) = pop(&mut queue.interruptible, &queue.pending) {
                let index = found.1;
                self.drafts[index].step.interrupts = true;
                self.effects[index] = self.effect(&self.drafts[index]);
                let Some(resource) = self.lacks(index, usage) else {
                    queue.open.insert(found);
                    continue;
                };
                queue.waits.entry(resource.clone()).or_default().push(found);
            }
            if let Some(found) = pop(&mut queue.splittable, &queue.pending) {
                queue.pending.remove(&found);
                for index in self.split(found.1) {
                    let part = (turn(self.drafts[index].step.verb), index);
                    queue.pending.insert(part);
                    queue.open.insert(part);
                }
                continue;
            }
            // Nothing helps: it asks for more than there is beside what keeps running. It is not done.
            queue.pending.remove(&first);
            self.overflow.insert(first.1);
            return Some(first.1);
        }
    }

    /// Of what a draft takes more than there is left; `None` where it fits.
    fn lacks(&self, index: usize, usage: &Amounts) -> Option<&Resource> {
        let takes = self.effects[index].takes.iter().filter(|(_, bytes)| **bytes > 0);
        let mut lacking = takes.filter(|(resource, bytes)| {
            let used = usage.get(*resource).copied().unwrap_or(0);
            self.capacity.get(*resource).is_some_and(|capacity| used.saturating_add(**bytes) > *capacity)
        });
        lacking.next().map(|(resource, _)| resource)
    }

    fn may_interrupt(&self, index: usize) -> bool {
        let draft = &self.drafts[index];
        let (Some(old), Some(new)) = (draft.old, draft.new) else { return false };
        let (old, new) = (&self.observed[old], &self.planned[new]);
        draft.step.verb == Verb::Move
            && !draft.step.interrupts
            && old.node == new.node
            && (new.accelerators.iter().any(|uuid| old.accelerators.contains(uuid)) || new.accelerators.is_empty())
    }

    fn may_split(&self, index: usize) -> bool {
        let draft = &self.drafts[index];
        matches!(draft.step.verb, Verb::Move | Verb::Change)
            && draft.old.is_some_and(|old| self.observed[old].holds_memory())
    }

    /// Turns a move or change into a stop of the old and a start of the new.
    fn split(&mut self, index: usize) -> [usize; 2] {
        let whole = self.drafts[index].clone();
        let mut stop = whole.clone();
        stop.step.verb = Verb::Stop;
        stop.step.node = whole.step.from_node.clone().unwrap_or_else(|| whole.step.node.clone());
        stop.step.instance = whole.step.from_instance.clone();
        stop.step.from_node = None;
        stop.step.from_instance = None;
        stop.step.interrupts = whole.old.is_some_and(|old| self.observed[old].alive);
        stop.step.detail = format!("{}; makes room before it starts again", whole.step.detail);
        stop.new = None;
        let mut start = whole;
        start.step.verb = Verb::Start;
        start.step.from_node = None;
        start.step.from_instance = None;
        start.step.interrupts = false;
        start.step.sessions = 0;
        start.old = None;
        start.needs.insert(index);
        self.effects[index] = self.effect(&stop);
        self.drafts[index] = stop;
        self.effects.push(self.effect(&start));
        self.drafts.push(start);
        [index, self.drafts.len() - 1]
    }

    /// The drafts that must be done so that this one fits whatever else has begun by then: along each resource,
    /// as many of the earlier givers as it takes.
    fn freed_first(
        &self,
        index: usize,
        taken: &mut Amounts,
        freed: &BTreeMap<Resource, Vec<(usize, u64)>>,
    ) -> BTreeSet<usize> {
        let mut needs = BTreeSet::new();
        for (resource, bytes) in self.effects[index].takes.iter().filter(|(_, bytes)| **bytes > 0) {
            let all = add(taken, resource, *bytes);
            let Some(capacity) = self.capacity.get(resource) else { continue };
            let mut used = self.before.get(resource).copied().unwrap_or(0).saturating_add(all);
            for (giver, bytes) in freed.get(resource).map_or(&[][..], Vec::as_slice) {
                if used <= *capacity {
                    break;
                }
                used = used.saturating_sub(*bytes);
                needs.insert(*giver);
            }
        }
        needs
    }

    /// Who takes ports of what leaves waits for it; where that would have to wait in turn, it is not done this time.
    fn ports(&mut self, ports: &[(usize, usize)]) {
        for (new, old) in ports {
            let takes = self.drafts.iter().position(|draft| draft.new == Some(*new) && is_load(draft.step.verb));
            let gives = self.drafts.iter().position(|draft| draft.old == Some(*old));
            match (takes, gives) {
                (Some(takes), Some(gives)) if takes != gives => {
                    if reaches(&self.drafts, gives, takes) {
                        self.overflow.insert(takes);
                    } else {
                        self.drafts[takes].needs.insert(gives);
                    }
                }
                (Some(takes), None) => _ = self.overflow.insert(takes),
                _ => {}
            }
        }
    }

    /// A stop on a node that leaves the cluster waits until the replica runs elsewhere.
    fn stop_after_start(&mut self) {
        let mut starts: BTreeMap<(String, u32), usize> = BTreeMap::new();
        let begins = |draft: &Draft| draft.step.verb == Verb::Start && !draft.is_worker();
        for (index, draft) in self.drafts.iter().enumerate().filter(|(_, draft)| begins(draft)) {
            starts.insert((draft.step.model.clone(), draft.step.replica), index);
        }
        for index in 0..self.drafts.len() {
            let stop = &self.drafts[index].step;
            if stop.verb != Verb::Stop || stop.because != Because::Removed {
                continue;
            }
            let successor = starts.get(&(stop.model.clone(), stop.replica)).copied();
            if let Some(start) = successor.filter(|start| self.drafts[*start].step.node != stop.node)
                && !reaches(&self.drafts, start, index)
            {
                self.drafts[index].needs.insert(start);
            }
        }
    }
}

/// A draft that is not done, in the order in which they are tried.
type Turn = (u8, usize);

/// Drafts that are not done.
struct Queue {
    /// All of them.
    pending: BTreeSet<Turn>,
    /// Those that may fit. The others wait for something of which there is too little.
    open: BTreeSet<Turn>,
    waits: BTreeMap<Resource, Vec<Turn>>,
    /// Those that may be made to interrupt, and those that may be split; done ones are passed over.
    interruptible: BTreeSet<Turn>,
    splittable: BTreeSet<Turn>,
}

impl Queue {
    /// Some of a resource is free again.
    fn wake(&mut self, resource: &Resource) {
        let waiting = self.waits.remove(resource).into_iter().flatten();
        self.open.extend(waiting.filter(|draft| self.pending.contains(draft)));
    }
}

/// The first of these that is not done.
fn pop(from: &mut BTreeSet<Turn>, pending: &BTreeSet<Turn>) -> Option<Turn> {
    std::iter::from_fn(|| from.pop_first()).find(|draft| pending.contains(draft))
}

fn is_load(verb: Verb) -> bool {
    matches!(verb, Verb::Start | Verb::Change | Verb::Restart | Verb::Move)
}

/// Whether `from` waits, directly or not, for `to`.
fn reaches(drafts: &[Draft], from: usize, to: usize) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(index) = open.pop() {
        if index == to {
            return true;
        }
        if seen.insert(index) {
            open.extend(drafts[index].needs.iter().copied());
        }
    }
    false
}

/// Adds to what there is of a resource; the new sum. What a file says may be any number.
fn add(amounts: &mut Amounts, resource: &Resource, bytes: u64) -> u64 {
    let sum = amounts.entry(resource.clone()).or_default();
    *sum = sum.saturating_add(bytes);
    *sum
}

fn minus(from: &Amounts, what: &Amounts) -> Amounts {
    from.iter()
        .map(|(resource, bytes)| (resource.clone(), bytes.saturating_sub(what.get(resource).copied().unwrap_or(0))))
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

/// In which turn verbs are tried and listed: what gives before what takes.
fn turn(verb: Verb) -> u8 {
    match verb {
        Verb::Fetch => 0,
        Verb::Adopt => 1,
        Verb::Stop => 2,
        Verb::Restart => 3,
        Verb::Change => 4,
        Verb::Move => 5,
        Verb::Start => 6,
    }
}

/// Orders drafts so that each comes after what it needs, earlier turns and smaller names first, and numbers them.
pub(super) fn number(drafts: Vec<Draft>) -> Vec<Step> {
    let mut waiting: Vec<usize> = drafts.iter().map(|draft| draft.needs.len()).collect();
    let mut wanted_by: Vec<Vec<usize>> = vec![Vec::new(); drafts.len()];
    for (index, draft) in drafts.iter().enumerate() {
        for need in &draft.needs {
            wanted_by[*need].push(index);
        }
    }
    let key = |index: usize| {
        let step = &drafts[index].step;
        Reverse((turn(step.verb), &step.model, step.replica, &step.node, &step.instance, index))
    };
    let mut ready: BinaryHeap<_> = (0..drafts.len()).filter(|index| waiting[*index] == 0).map(key).collect();
    let mut ids: BTreeMap<usize, u32> = BTreeMap::new();
    let mut order = Vec::new();
    while let Some(Reverse((.., index))) = ready.pop() {
        ids.insert(index, ids.len() as u32 + 1);
        order.push(index);
        for next in &wanted_by[index] {
            waiting[*next] -= 1;
            if waiting[*next] == 0 {
                ready.push(key(*next));
            }
        }
    }
    order
        .into_iter()
        .map(|index| {
            let draft = &drafts[index];
            let mut step = draft.step.clone();
            step.id = ids[&index];
            step.after = draft.needs.iter().map(|need| ids[need]).collect();
            step.after.sort_unstable();
            step
        })
        .collect()
}
