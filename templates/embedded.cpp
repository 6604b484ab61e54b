#include "templates/embedded.h"

#include <algorithm>

#include "base/error.h"

namespace attune::templates {

const File& file(std::string_view name) {
  const auto all = files();
  const auto found = std::ranges::find(all, name, &File::name);
  if (found == all.end()) fail(ErrorCode::not_found, "no embedded device code is named {}", name);
  return *found;
}

}  // namespace attune::templates
