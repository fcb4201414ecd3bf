# Finds what each component of convoy needs on this machine. Both the build and the installed package include this file: convoy
# is header-only, so that the user's libraries determine the components.
#
# convoy_find_<component>() sets in its caller's scope
#   convoy_<component>_FOUND   and creates the target convoy::<component> if it is true
#   convoy_<component>_DETAIL  what was found, for messages
#   convoy_<component>_REASON  what is missing and where to get it, for messages
set(convoy_components host mpi cuda nccl)  # also in a scope that includes this file again
include_guard(DIRECTORY)

# The libraries' targets must be visible where convoy's targets are used, not only in convoy's own folder.
macro(convoy_begin_search)
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
  set(found FALSE)
  set(detail "")
  set(reason "")
endmacro()

macro(convoy_end_search name)
  set(convoy_${name}_FOUND ${found} PARENT_SCOPE)
  set(convoy_${name}_DETAIL "${detail}" PARENT_SCOPE)
  set(convoy_${name}_REASON "${reason}" PARENT_SCOPE)
endmacro()

function(convoy_add_component name)
  if(NOT TARGET convoy::${name})
    string(TOUPPER ${name} upper)
    add_library(convoy::${name} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(convoy::${name} INTERFACE convoy::convoy ${ARGN})
    # convoy/convoy.hpp includes the headers of the components whose macros are defined.
    target_compile_definitions(convoy::${name} INTERFACE CONVOY_HAS_${upper})
  endif()
endfunction()

# core: threads, zlib (compressed data sets) and the OpenMP runtime that oneDNN uses too. Linking the runtime needs no -fopenmp.
function(convoy_find_core)
  convoy_begin_search()
  find_package(Threads QUIET)
  find_package(ZLIB QUIET)
  if(NOT Threads_FOUND)
    set(reason "a threads library was not found")
  elseif(NOT ZLIB_FOUND)
    set(reason "zlib was not found (Debian and Ubuntu: zlib1g-dev)")
  else()
    set(found TRUE)
    set(detail "(threads, zlib ${ZLIB_VERSION_STRING}, libgomp)")
  endif()
  set(convoy_core_LIBRARIES Threads::Threads ZLIB::ZLIB gomp PARENT_SCOPE)
  convoy_end_search(core)
endfunction()

# host: oneDNN, by its header and library, because Debian's package file requires OpenCL headers, which convoy does not need.
function(convoy_find_host)
  convoy_begin_search()
  find_path(CONVOY_DNNL_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h HINTS ${dnnl_ROOT} ENV dnnl_ROOT ENV DNNLROOT
            PATH_SUFFIXES include)
  find_library(CONVOY_DNNL_LIBRARY NAMES dnnl HINTS ${dnnl_ROOT} ENV dnnl_ROOT ENV DNNLROOT PATH_SUFFIXES lib lib64)
  mark_as_advanced(CONVOY_DNNL_INCLUDE_DIR CONVOY_DNNL_LIBRARY)
  if(NOT CONVOY_DNNL_INCLUDE_DIR OR NOT CONVOY_DNNL_LIBRARY)
    set(reason "oneDNN was not found (Debian and Ubuntu: libdnnl-dev; dnnl_ROOT says where else it is)")
  else()
    set(found TRUE)
    set(version "")
    file(STRINGS ${CONVOY_DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h lines
         REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    foreach(line IN LISTS lines)
      string(REGEX MATCH "[0-9]+$" number "${line}")
      list(APPEND version ${number})
    endforeach()
    list(JOIN version "." version)
    set(detail "oneDNN ${version}")
    if(NOT TARGET convoy::dnnl)
      add_library(convoy::dnnl UNKNOWN IMPORTED GLOBAL)
      set_target_properties(convoy::dnnl PROPERTIES IMPORTED_LOCATION "${CONVOY_DNNL_LIBRARY}"
                                                    INTERFACE_INCLUDE_DIRECTORIES "${CONVOY_DNNL_INCLUDE_DIR}")
    endif()
    convoy_add_component(host convoy::dnnl)
  endif()
  convoy_end_search(host)
endfunction()

# mpi: the MPI of MPI_CXX_COMPILER or of the first mpicxx, and Boost.MPI if it was built on the same MPI, whose types are part
# of the mangled names of its functions.
function(convoy_find_mpi)
  convoy_begin_search()
  set(MPI_CXX_SKIP_MPICXX TRUE)  # the C++ bindings that MPI 3 removed
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    set(reason "MPI was not found (Debian and Ubuntu: libopenmpi-dev; MPI_CXX_COMPILER says where else it is)")
  else()
    set(found TRUE)
    convoy_add_component(mpi MPI::MPI_CXX)
    find_package(Boost CONFIG QUIET COMPONENTS mpi)
    if(TARGET Boost::mpi)
      include(CheckCXXSourceCompiles)
      set(CMAKE_REQUIRED_QUIET TRUE)
      set(CMAKE_REQUIRED_LIBRARIES Boost::mpi MPI::MPI_CXX)
      check_cxx_source_compiles("#include <boost/mpi/group.hpp>
                                 int main() { return boost::mpi::group(MPI_GROUP_EMPTY, false).size(); }"
                                CONVOY_BOOST_MPI_FITS)
    endif()
    if(CONVOY_BOOST_MPI_FITS)
      set(detail "Boost.MPI ${Boost_VERSION}")
      target_link_libraries(convoy::mpi INTERFACE Boost::mpi)
      target_compile_definitions(convoy::mpi INTERFACE CONVOY_HAS_BOOST_MPI)
    else()
      set(detail "no Boost.MPI for it")
    endif()
    set(detail "MPI ${MPI_CXX_VERSION} of ${MPI_CXX_COMPILER}, ${detail}")
  endif()
  convoy_end_search(mpi)
endfunction()

# The folders of NVIDIA's Python wheels (nvidia/<part>), in which library names end in the ABI version.
function(convoy_find_wheels result)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(wheels "")
  if(Python3_FOUND)
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "import nvidia; print(';'.join(nvidia.__path__))" OUTPUT_VARIABLE wheels
                    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  set(${result} "${wheels}" PARENT_SCOPE)
endfunction()

# Finds <part>.h and lib<part> in the toolkit, the system's packages or Python wheels; sets CONVOY_<PART>_INCLUDE_DIR and
# CONVOY_<PART>_LIBRARY.
macro(convoy_find_beside_cuda part abi)
  string(TOUPPER ${part} upper)
  # The toolkit's own folder, too, because CUDAToolkit_LIBRARY_DIR can be another one, such as /usr/local/lib.
  find_path(CONVOY_${upper}_INCLUDE_DIR NAMES ${part}.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_BIN_DIR}/../include)
  find_library(CONVOY_${upper}_LIBRARY NAMES ${part} HINTS ${CUDAToolkit_LIBRARY_DIR}
               ${CUDAToolkit_BIN_DIR}/../lib64 ${CUDAToolkit_BIN_DIR}/../lib)
  mark_as_advanced(CONVOY_${upper}_INCLUDE_DIR CONVOY_${upper}_LIBRARY)
  if(NOT CONVOY_${upper}_INCLUDE_DIR OR NOT CONVOY_${upper}_LIBRARY)
    convoy_find_wheels(wheels)
    list(TRANSFORM wheels APPEND /${part})
    unset(CONVOY_${upper}_INCLUDE_DIR CACHE)  # header and library must be of one version
    unset(CONVOY_${upper}_LIBRARY CACHE)
    find_path(CONVOY_${upper}_INCLUDE_DIR NAMES ${part}.h PATHS ${wheels} PATH_SUFFIXES include NO_DEFAULT_PATH)
    find_library(CONVOY_${upper}_LIBRARY NAMES lib${part}.so.${abi} PATHS ${wheels} PATH_SUFFIXES lib NO_DEFAULT_PATH)
  endif()
endmacro()

# Finds the toolkit as CMake does or, if CMake finds none or one without libraries, in Python wheels (nvidia/cu13). CMake
# accepts a toolkit of wheels once the libraries are given, because it does not search for their versioned names.
macro(convoy_find_toolkit)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND)
    if(CUDAToolkit_BIN_DIR)  # nvcc was found
      get_filename_component(root ${CUDAToolkit_BIN_DIR} DIRECTORY)
    else()
      convoy_find_wheels(wheels)
      list(TRANSFORM wheels APPEND /cu13)
      find_path(CUDAToolkit_ROOT NAMES bin/nvcc PATHS ${wheels} NO_DEFAULT_PATH)
      mark_as_advanced(CUDAToolkit_ROOT)
      set(root ${CUDAToolkit_ROOT})
    endif()
    if(root)
      find_library(CUDA_CUDART NAMES libcudart.so.13 PATHS ${root}/lib NO_DEFAULT_PATH)
      find_library(CUDA_cudart_LIBRARY NAMES libcudart.so.13 PATHS ${root}/lib NO_DEFAULT_PATH)
      find_library(CUDA_cublasLt_LIBRARY NAMES libcublasLt.so.13 PATHS ${root}/lib NO_DEFAULT_PATH)
      find_package(CUDAToolkit QUIET)
    endif()
  endif()
endmacro()

# cuda: the CUDA runtime, cuBLASLt and cuDNN. The component does not enable the CUDA language; `project(... CUDA)` does.
function(convoy_find_cuda)
  convoy_begin_search()
  convoy_find_toolkit()
  if(NOT CUDAToolkit_FOUND)
    set(reason "the CUDA toolkit was not found, in Python's wheels neither (CUDAToolkit_ROOT says where it is)")
  elseif(NOT TARGET CUDA::cudart OR NOT TARGET CUDA::cublasLt)
    set(reason "the CUDA toolkit at ${CUDAToolkit_LIBRARY_DIR} has no cudart or no cublasLt")
  else()
    convoy_find_beside_cuda(cudnn 9)
    if(NOT CONVOY_CUDNN_INCLUDE_DIR OR NOT CONVOY_CUDNN_LIBRARY)
      set(reason "cuDNN 9 was not found beside CUDA ${CUDAToolkit_VERSION} nor in Python's wheels (CMAKE_PREFIX_PATH says where it is)")
    else()
      set(found TRUE)
      set(detail "CUDA ${CUDAToolkit_VERSION}, cuDNN at ${CONVOY_CUDNN_LIBRARY}")
      if(NOT TARGET convoy::cudnn)
        add_library(convoy::cudnn UNKNOWN IMPORTED GLOBAL)
        set_target_properties(convoy::cudnn PROPERTIES IMPORTED_LOCATION "${CONVOY_CUDNN_LIBRARY}"
                                                       INTERFACE_INCLUDE_DIRECTORIES "${CONVOY_CUDNN_INCLUDE_DIR}")
      endif()
      convoy_add_component(cuda CUDA::cudart CUDA::cublasLt convoy::cudnn)
      # What convoy's CUDA headers require of nvcc; a project without the CUDA language includes none of them.
      target_compile_options(convoy::cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
      if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
        target_compile_features(convoy::cuda INTERFACE cuda_std_20)
      elseif(CMAKE_CUDA_COMPILER_LOADED)  # CMake 3.25 does not know nvcc's C++20
        target_compile_options(convoy::cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
      endif()
    endif()
  endif()
  convoy_end_search(cuda)
endfunction()

# nccl: NCCL and the CUDA runtime.
function(convoy_find_nccl)
  convoy_begin_search()
  convoy_find_toolkit()
  convoy_find_beside_cuda(nccl 2)
  if(NOT TARGET CUDA::cudart)
    set(reason "the CUDA toolkit was not found, in Python's wheels neither (CUDAToolkit_ROOT says where it is)")
  elseif(NOT CONVOY_NCCL_INCLUDE_DIR OR NOT CONVOY_NCCL_LIBRARY)
    set(reason "NCCL was not found, in Python's wheels neither (Debian and Ubuntu: libnccl-dev; CMAKE_PREFIX_PATH says where it is)")
  else()
    set(found TRUE)
    set(detail "NCCL at ${CONVOY_NCCL_LIBRARY}")
    if(NOT TARGET convoy::nccl_library)
      add_library(convoy::nccl_library UNKNOWN IMPORTED GLOBAL)
      set_target_properties(convoy::nccl_library PROPERTIES IMPORTED_LOCATION "${CONVOY_NCCL_LIBRARY}"
                                                            INTERFACE_INCLUDE_DIRECTORIES "${CONVOY_NCCL_INCLUDE_DIR}")
    endif()
    convoy_add_component(nccl convoy::nccl_library CUDA::cudart)
  endif()
  convoy_end_search(nccl)
endfunction()

# Applies an AUTO|ON|OFF option: searches, adds a line to the summary, and stops if something that is ON is missing.
macro(convoy_decide option title search result)
  if(NOT "${${option}}" MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "convoy: ${option} is '${${option}}'; it must be AUTO, ON or OFF.")
  endif()
  set(${result}_FOUND FALSE)
  if("${${option}}" STREQUAL "OFF")
    string(APPEND convoy_summary "\n     ${title}: off (${option}=OFF)")
  else()
    cmake_language(CALL ${search})
    if(${result}_FOUND)
      string(APPEND convoy_summary "\n     ${title}: on (${${result}_DETAIL})")
    elseif("${${option}}" STREQUAL "ON")
      message(FATAL_ERROR "convoy: ${option} is ON, but ${${result}_REASON}.")
    else()
      string(APPEND convoy_summary "\n     ${title}: off, because ${${result}_REASON}")
    endif()
  endif()
endmacro()
