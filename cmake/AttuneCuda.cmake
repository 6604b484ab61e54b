# The headers cuda.h and nvrtc.h of a CUDA toolkit 12.8 or newer, as attune_cuda. Only declarations are used: the driver
# and NVRTC are opened at run time. Looked for at each configuration, in this order:
#   ATTUNE_CUDA_INCLUDE_DIR, $CUDA_HOME, /usr/local/cuda, /usr/local/cuda-* (newest first), the wheels under .toolkit

set(ATTUNE_CUDA_INCLUDE_DIR "" CACHE PATH "Folder of cuda.h and nvrtc.h (empty: search)")

# attune_cuda_version(<variable> <folder>): "12.8" from CUDA_VERSION in cuda.h, or empty.
function(attune_cuda_version variable folder)
  set(${variable} "" PARENT_SCOPE)
  if(EXISTS ${folder}/cuda.h AND EXISTS ${folder}/nvrtc.h)
    file(STRINGS ${folder}/cuda.h line REGEX "^#define CUDA_VERSION [0-9]+" LIMIT_COUNT 1)
    if(line MATCHES "([0-9]+)[0-9]([0-9])[0-9]$")
      set(${variable} ${CMAKE_MATCH_1}.${CMAKE_MATCH_2} PARENT_SCOPE)
    endif()
  endif()
endfunction()

function(attune_find_cuda variable)
  file(GLOB versioned /usr/local/cuda-*/include)
  list(SORT versioned COMPARE NATURAL ORDER DESCENDING)
  set(folders /usr/local/cuda/include ${versioned} ${PROJECT_SOURCE_DIR}/.toolkit/nvidia/cu13/include)
  if(DEFINED ENV{CUDA_HOME})
    list(PREPEND folders $ENV{CUDA_HOME}/include)
  endif()
  if(ATTUNE_CUDA_INCLUDE_DIR)
    set(folders ${ATTUNE_CUDA_INCLUDE_DIR})
  endif()
  foreach(folder IN LISTS folders)
    attune_cuda_version(version ${folder})
    if(version VERSION_GREATER_EQUAL 12.8)
      message(STATUS "CUDA headers ${version}: ${folder}")
      set(${variable} ${folder} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  list(JOIN folders ", " looked)
  message(FATAL_ERROR "cuda.h and nvrtc.h of CUDA 12.8 or newer were not found in: ${looked}. "
                      "`./dev setup` installs them; or set ATTUNE_CUDA_INCLUDE_DIR.")
endfunction()

attune_find_cuda(cuda_include_dir)
add_library(attune_cuda INTERFACE)
target_include_directories(attune_cuda SYSTEM INTERFACE ${cuda_include_dir})
