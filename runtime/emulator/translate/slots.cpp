#include "runtime/emulator/translate/slots.h"

#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

extern "C" void att_slot_hazards(ThreadContext* context, const SlotAccesses* accesses) {
  for (const SlotAccess& access : *accesses) {
    const int wrong = access.write ? kSlotBusy | kSlotRead : kSlotBusy;
    if (context->slot_states[access.slot] & wrong) att_slot_hazard(context, access.slot, access.write, access.site);
  }
}

}  // namespace attune::emulator
