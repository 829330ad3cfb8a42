//! GetContainerEvents.

use podwright_cri::EventStream;

use super::VerbContext;

pub(crate) fn container_events(calls: VerbContext<'_>) -> EventStream {
    calls.context.events.subscribe()
}
