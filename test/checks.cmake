# Tests of the sources and of the package: headers alone, include graph, consumers, programs that must not compile, format.

set(public_include ${PROJECT_SOURCE_DIR}/include)
find_program(CONVOY_CLANGXX NAMES clang++)
find_program(CONVOY_CLANG_FORMAT NAMES clang-format-14 clang-format)
mark_as_advanced(CONVOY_CLANGXX CONVOY_CLANG_FORMAT)

# The compilers by name: this build's, and clang too if it is installed.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(CONVOY_CLANGXX ${CMAKE_CXX_COMPILER})
  set(compilers clang)
elseif(CONVOY_CLANGXX)
  set(compilers gcc clang)
else()
  set(compilers gcc)
endif()
set(compiler_of_gcc ${CMAKE_CXX_COMPILER})
set(compiler_of_clang ${CONVOY_CLANGXX})

# Sources that are compiled alone, one by one, use a precompiled standard library. That would hide missing includes of it, which
# std.sh checks.
foreach(compiler IN LISTS compilers)
  set(std_of_${compiler} ${CMAKE_CURRENT_BINARY_DIR}/${compiler}/std.hpp)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${compiler})
  add_test(NAME headers.${compiler}.std COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/headers/std.sh ${compiler_of_${compiler}}
                                                ${std_of_${compiler}} ${public_include})
  set_tests_properties(headers.${compiler}.std PROPERTIES TIMEOUT 120 LABELS headers FIXTURES_SETUP std_of_${compiler})
endforeach()

# Headers alone.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${public_include} ${public_include}/*.hpp)
set(available "")
foreach(header IN LISTS headers)
  convoy_component_of(${header} component)
  if(NOT component OR convoy_${component}_FOUND)
    list(APPEND available ${header})
  endif()
endforeach()
# Writes a file with the include folders and definitions of convoy and the given components, one flag a line, for any compiler.
# The flags in `before` come first.
function(write_flags file)
  set(folders "")
  set(definitions "")
  foreach(target convoy::convoy ${ARGN})
    list(APPEND folders $<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>)
    list(APPEND definitions $<TARGET_PROPERTY:${target},INTERFACE_COMPILE_DEFINITIONS>)
  endforeach()
  # /usr/include must not become an explicit system folder: libstdc++ finds the C headers after its own.
  set(folders "$<REMOVE_DUPLICATES:$<FILTER:${folders},EXCLUDE,^(/usr/include|${public_include})?$>>")
  set(definitions "$<REMOVE_DUPLICATES:$<FILTER:${definitions},EXCLUDE,^$>>")
  file(GENERATE OUTPUT ${file}
       CONTENT "-std=c++20
${before}-I${public_include}
$<$<BOOL:${folders}>:-isystem$<JOIN:${folders},\n-isystem>
>$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},\n-D>
>")
endfunction()
set(host_components "")
foreach(component host mpi)
  if(convoy_${component}_FOUND)
    list(APPEND host_components convoy::${component})
  endif()
endforeach()
write_flags(${CMAKE_CURRENT_BINARY_DIR}/headers.flags ${host_components})

# An include that one compiler misses is missing with any, so that the faster one is enough here. The other compiles the tests.
list(GET compilers -1 faster)
set(reader ${compiler_of_${faster}} ${std_of_${faster}})
set(std std_of_${faster})
# Headers that many others include.
set(bases "convoy/graph/plan.hpp convoy/comm/engine/agree.hpp")
if(convoy_host_FOUND)
  string(APPEND bases " convoy/exec/host/program.hpp")
endif()
add_test(NAME headers.host COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/headers/check.sh ${reader} ${CMAKE_CURRENT_BINARY_DIR}/headers.flags
                                   "${bases}" ${available})
set_tests_properties(headers.host PROPERTIES TIMEOUT 600 LABELS headers FIXTURES_REQUIRED ${std})

# The programs that guides show in pieces.
if(convoy_host_FOUND AND convoy_mpi_FOUND)
  foreach(guide exchange_without_trainer own_exchange own_model own_operation plan_1000_gpus training)
    add_test(NAME docs.${guide} COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/readme/guide.sh ${reader}
                                        ${CMAKE_CURRENT_BINARY_DIR}/headers.flags ${PROJECT_SOURCE_DIR}/docs/${guide}.md)
    set_tests_properties(docs.${guide} PROPERTIES TIMEOUT 120 LABELS headers FIXTURES_REQUIRED ${std})
  endforeach()
endif()

# Deep models are constants within the compilers' default limits.
foreach(compiler IN LISTS compilers)
  add_test(NAME limits.${compiler}.deep_models
           COMMAND ${compiler_of_${compiler}} -std=c++20 -fsyntax-only -I${public_include}
                   ${CMAKE_CURRENT_SOURCE_DIR}/limits/deep_models.cpp)
  set_tests_properties(limits.${compiler}.deep_models PROPERTIES TIMEOUT 120 LABELS headers)
endforeach()
# Likewise the proofs of schedules, which this build compiles with its own compiler.
if(NOT compiler_of_${faster} STREQUAL CMAKE_CXX_COMPILER)
  add_test(NAME limits.${faster}.schedule_proofs
           COMMAND ${compiler_of_${faster}} -std=c++20 -fsyntax-only -I${public_include} -I${CMAKE_CURRENT_SOURCE_DIR}
                   ${CMAKE_CURRENT_SOURCE_DIR}/test_comm_schedule_proofs.cpp)
  set_tests_properties(limits.${faster}.schedule_proofs PROPERTIES TIMEOUT 120 LABELS headers)
endif()

# Flags with which convoy cannot be compiled give one sentence.
foreach(compiler IN LISTS compilers)
  foreach(refusal "-std=c++17:it needs C..20" "-fno-exceptions:it needs exceptions" "-fno-rtti:it needs run-time type information")
    string(REGEX REPLACE ":.*" "" flag ${refusal})
    string(REGEX REPLACE ".*:" "" says ${refusal})
    string(REGEX REPLACE "[^a-z0-9]+" "_" short ${flag})
    add_test(NAME headers.${compiler}.refused${short}
             COMMAND ${compiler_of_${compiler}} -std=c++20 ${flag} -fsyntax-only -I${public_include}
                     ${CMAKE_CURRENT_SOURCE_DIR}/headers/refused.cpp)
    set_tests_properties(headers.${compiler}.refused${short} PROPERTIES TIMEOUT 60 LABELS headers
      PASS_REGULAR_EXPRESSION "error \"convoy: ${says}|error: \"convoy: ${says}" FAIL_REGULAR_EXPRESSION "error: [^#\"]")
  endforeach()
endforeach()

# Compilers that assume that all numbers are finite do not hide those that are not.
convoy_add_program(fast_math SOURCES fast_math/not_finite.cpp)
target_compile_options(fast_math PRIVATE -O2 -ffast-math)
add_test(NAME core_fast_math COMMAND fast_math)
set_tests_properties(core_fast_math PROPERTIES TIMEOUT 60 LABELS core)

# Every header in two sources of one program: none defines a function or variable that both would define. Before them, one source has
# the macro I of C's complex numbers, which no header may use as a name. (Boost itself does not accept that macro.)
set(twice "")
foreach(header IN LISTS available)
  string(APPEND twice "#include <${header}>\n")
endforeach()
set(other "#ifdef CONVOY_HAS_BOOST_MPI\n#include <boost/mpi/environment.hpp>\n#endif\n")
file(CONFIGURE OUTPUT first.cpp CONTENT "${other}#include <complex.h>\n${twice}int main() {}\n" @ONLY)
file(CONFIGURE OUTPUT second.cpp CONTENT "${twice}" @ONLY)
add_executable(link_twice ${CMAKE_CURRENT_BINARY_DIR}/first.cpp ${CMAKE_CURRENT_BINARY_DIR}/second.cpp)
target_compile_options(link_twice PRIVATE -O0)
set_target_properties(link_twice PROPERTIES UNITY_BUILD OFF)  # two sources are its point
target_link_libraries(link_twice PRIVATE convoy::convoy ${host_components})
add_test(NAME headers.link_twice COMMAND link_twice)
set_tests_properties(headers.link_twice PROPERTIES TIMEOUT 60 LABELS headers)

# CUDA headers alone: all of them with the host's compiler over the emulation, which takes a tenth of nvcc's time; with nvcc only
# the header that users include, and the models.
set(cuda_components "")
foreach(component cuda nccl)
  if(convoy_${component}_FOUND)
    list(APPEND cuda_components convoy::${component})
  endif()
endforeach()
file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE ${public_include} ${public_include}/*.cuh)
set(cuda_available "")
foreach(header IN LISTS cuda_headers)
  convoy_component_of(${header} component)
  if(convoy_${component}_FOUND)
    list(APPEND cuda_available ${header})
  endif()
endforeach()
if(cuda_available)
  set(before "-I${CMAKE_CURRENT_SOURCE_DIR}/emulation\n")
  write_flags(${CMAKE_CURRENT_BINARY_DIR}/emulated.flags ${host_components} ${cuda_components})
  set(before "")
  set(bases "convoy/memory/launch.cuh convoy/memory/vector.cuh")
  if(convoy_cuda_FOUND)
    string(APPEND bases " convoy/exec/cuda/program.cuh")
  endif()
  add_test(NAME headers.cuda COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/headers/check.sh ${reader}
                                     ${CMAKE_CURRENT_BINARY_DIR}/emulated.flags "${bases}" ${cuda_available})
  set_tests_properties(headers.cuda PROPERTIES TIMEOUT 600 LABELS "headers;cuda" FIXTURES_REQUIRED ${std})
endif()
if(convoy_compiles_cuda)
  # Without the host's components: nvcc's front end crashes on the loops of exec::Host. In programs, convoy::compiled keeps them
  # from nvcc.
  write_flags(${CMAKE_CURRENT_BINARY_DIR}/cuda.flags ${cuda_components})
  file(GLOB models CONFIGURE_DEPENDS RELATIVE ${public_include} ${public_include}/convoy/models/*.hpp)
  foreach(header IN LISTS models ITEMS convoy/convoy.hpp)
    string(REGEX REPLACE "[^a-z0-9_]+" "." short ${header})
    add_test(NAME headers.nvcc.${short}
             COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/headers/check_nvcc.sh ${CMAKE_CUDA_COMPILER}
                     ${CMAKE_CURRENT_BINARY_DIR}/cuda.flags ${header})
    set_tests_properties(headers.nvcc.${short} PROPERTIES TIMEOUT 300 LABELS "headers;cuda")
  endforeach()
  add_test(NAME headers.nvcc.old_architecture
           COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/headers/check_nvcc.sh ${CMAKE_CUDA_COMPILER}
                   ${CMAKE_CURRENT_BINARY_DIR}/cuda.flags convoy/memory/mma.cuh sm_75)
  set_tests_properties(headers.nvcc.old_architecture PROPERTIES TIMEOUT 300 LABELS "headers;cuda" PASS_REGULAR_EXPRESSION
    "error \"convoy: its kernels need compute capability 8.0 or later")
endif()

# Spills and registers of the kernels, as nvcc reports them for one architecture.
if(convoy_compiles_cuda)
  add_test(NAME kernels.registers COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/kernels/check.sh ${CMAKE_CUDA_COMPILER}
                                          ${CMAKE_CURRENT_BINARY_DIR}/cuda.flags)
  set_tests_properties(kernels.registers PROPERTIES TIMEOUT 600 LABELS cuda)
endif()

if(convoy_compiles_cuda)
  add_test(NAME limits.nvcc.deep_models
           COMMAND ${CMAKE_CUDA_COMPILER} -std=c++20 --expt-relaxed-constexpr -Wno-deprecated-gpu-targets -I${public_include} -x cu
                   -cuda -o ${CMAKE_CURRENT_BINARY_DIR}/deep_models.ii ${CMAKE_CURRENT_SOURCE_DIR}/limits/deep_models.cpp)
  set_tests_properties(limits.nvcc.deep_models PROPERTIES TIMEOUT 300 LABELS "headers;cuda")
endif()

# The rooms and who may include whom.
set(include_graph ${CMAKE_COMMAND} -P ${CMAKE_CURRENT_SOURCE_DIR}/include_graph/check.cmake)
add_test(NAME include_graph COMMAND ${include_graph} ${public_include})
set_tests_properties(include_graph PROPERTIES TIMEOUT 60 LABELS sources)
foreach(fault upwards sideways cycle missing device)
  add_test(NAME include_graph.finds_${fault}
           COMMAND ${include_graph} ${CMAKE_CURRENT_SOURCE_DIR}/include_graph/${fault})
  set_tests_properties(include_graph.finds_${fault} PROPERTIES TIMEOUT 60 LABELS sources)
endforeach()
set_tests_properties(include_graph.finds_upwards PROPERTIES PASS_REGULAR_EXPRESSION
  "convoy/core/shape.hpp includes convoy/graph/node.hpp: core may not know graph")
set_tests_properties(include_graph.finds_sideways PROPERTIES PASS_REGULAR_EXPRESSION
  "convoy/exec/exec.hpp includes convoy/comm/ring.hpp: exec may not know comm")
set_tests_properties(include_graph.finds_cycle PROPERTIES PASS_REGULAR_EXPRESSION
  "include one another in a cycle: convoy/core/a.hpp convoy/core/b.hpp")
set_tests_properties(include_graph.finds_missing PROPERTIES PASS_REGULAR_EXPRESSION
  "convoy/core/a.hpp includes convoy/core/gone.hpp, which does not exist")
set_tests_properties(include_graph.finds_device PROPERTIES PASS_REGULAR_EXPRESSION
  "convoy/exec/a.hpp includes cuda_runtime.h: only a .cuh may")

# Consumers, each a project of its own.
add_test(NAME consumer.install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix
                                       ${CMAKE_CURRENT_BINARY_DIR}/prefix)
set_tests_properties(consumer.install PROPERTIES FIXTURES_SETUP installed TIMEOUT 60 LABELS consumer)
function(add_consumer name)
  cmake_parse_arguments(PARSE_ARGV 1 a "" "PROJECT;COMPILER;SAYS" "OPTIONS;COMPONENTS")
  if(NOT a_COMPILER)
    set(a_COMPILER ${CMAKE_CXX_COMPILER})
  endif()
  list(JOIN a_COMPONENTS " " components)
  add_test(NAME consumer.${name}
           COMMAND ${CMAKE_COMMAND} -DPROJECT=${CMAKE_CURRENT_SOURCE_DIR}/consumers/${a_PROJECT} -DGENERATOR=${CMAKE_GENERATOR}
                   -DBUILD=${CMAKE_CURRENT_BINARY_DIR}/consumers/${name} -DCOMPILER=${a_COMPILER} -DSAYS=${a_SAYS}
                   "-DOPTIONS=${a_OPTIONS};-DCOMPONENTS=${components};-DCONVOY_SOURCE=${PROJECT_SOURCE_DIR}"
                   -DPREFIX=${CMAKE_CURRENT_BINARY_DIR}/prefix -P ${CMAKE_CURRENT_SOURCE_DIR}/consumers/check.cmake)
  set_tests_properties(consumer.${name} PROPERTIES TIMEOUT 300 LABELS consumer FIXTURES_REQUIRED installed
                                                   ENVIRONMENT "${mpi_environment}")
endfunction()
add_consumer(find_package PROJECT find_package)
add_consumer(add_subdirectory PROJECT add_subdirectory)
add_consumer(fetch_content PROJECT fetch_content)
if(CONVOY_CLANGXX)
  add_consumer(find_package.clang PROJECT find_package COMPILER ${CONVOY_CLANGXX})
endif()
set(found_components "")
foreach(component host mpi)
  if(convoy_${component}_FOUND)
    list(APPEND found_components ${component})
  endif()
endforeach()
if(found_components)
  add_consumer(components PROJECT find_package COMPONENTS ${found_components})
  if(convoy_host_FOUND AND convoy_mpi_FOUND)
    # With the faster compiler: the other one compiles the examples, one of them with headers alone.
    add_consumer(trainer.find_package PROJECT find_package COMPONENTS host mpi COMPILER ${compiler_of_${faster}}
                 OPTIONS -DPROGRAM=trainer)
    add_consumer(trainer.compiled PROJECT add_subdirectory COMPONENTS compiled COMPILER ${compiler_of_${faster}}
                 OPTIONS -DPROGRAM=trainer)
  endif()
endif()
if(convoy_compiles_cuda)
  add_consumer(cuda PROJECT cuda COMPONENTS cuda
               OPTIONS -DCMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER} -DCMAKE_CUDA_ARCHITECTURES=80-virtual)
endif()
if(convoy_cuda_FOUND AND convoy_nccl_FOUND AND NOT EXISTS /usr/bin/nvcc)  # the test hides the folder of nvcc, and /usr/bin must not be hidden
  add_consumer(wheels PROJECT wheels COMPONENTS cuda nccl
               OPTIONS -DTOOLKIT=${CUDAToolkit_BIN_DIR}
                       "-DFILES=${CUDA_CUDART} ${CUDA_cublasLt_LIBRARY} ${CONVOY_CUDNN_LIBRARY} ${CONVOY_NCCL_LIBRARY}"
                       "-DHEADERS=${CUDAToolkit_INCLUDE_DIR} ${CONVOY_CUDNN_INCLUDE_DIR} ${CONVOY_NCCL_INCLUDE_DIR}")
endif()
add_consumer(unknown_component PROJECT find_package COMPONENTS teleport
             SAYS "there is no component 'teleport'.*there are host, mpi, cuda, nccl")
add_consumer(missing_component PROJECT find_package COMPONENTS mpi OPTIONS -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
             SAYS "component 'mpi' was asked for, but MPI was not found")
add_consumer(no_cxx PROJECT find_package COMPONENTS mpi OPTIONS -DLANGUAGE=C
             SAYS "convoy: the project must enable the language CXX")
add_consumer(missing_but_on PROJECT add_subdirectory OPTIONS -DCONVOY_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
             SAYS "CONVOY_MPI is ON, but MPI was not found")
add_consumer(option_misspelt PROJECT add_subdirectory OPTIONS -DCONVOY_HOST=YES
             SAYS "CONVOY_HOST is 'YES'.*it must be AUTO, ON or OFF")
add_consumer(wrong_version PROJECT find_package OPTIONS -DVERSION=99.0 SAYS "requested[ \n]+version \"?99.0")

# Programs that must not compile, each with one sentence. A program with CUDA has a line `// EMULATES`, as tests do. Each is compiled
# on top of precompiled headers: those of the graph, or of trainers.
set(before_graph convoy/graph/plan.hpp)
set(before_trainers convoy/comm/policy/all_reduce.hpp convoy/comm/policy/none.hpp convoy/data/digits.hpp
                    convoy/exec/reference/reference.hpp convoy/models/resnet.hpp convoy/train/plan_trainer.hpp
                    convoy/train/trainer.hpp)
foreach(compiler IN LISTS compilers)
  foreach(what graph trainers)
    list(TRANSFORM before_${what} REPLACE "(.+)" "#include <\\1>\n" OUTPUT_VARIABLE lines)
    list(JOIN lines "" lines)
    file(CONFIGURE OUTPUT ${compiler}/${what}.hpp CONTENT "#include \"std.hpp\"\n${lines}" @ONLY)
    add_test(NAME compile_fail.${compiler}.${what}.precompiled
             COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/headers/precompile.sh ${compiler_of_${compiler}}
                     ${CMAKE_CURRENT_BINARY_DIR}/${compiler}/${what}.hpp -std=c++20 -I${public_include})
    set_tests_properties(compile_fail.${compiler}.${what}.precompiled PROPERTIES
      TIMEOUT 120 LABELS compile_fail FIXTURES_SETUP ${what}_of_${compiler} FIXTURES_REQUIRED std_of_${compiler})
  endforeach()
endforeach()
file(GLOB wrong CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cpp)
foreach(compiler IN LISTS compilers)
  foreach(source IN LISTS wrong)
    get_filename_component(what ${source} NAME_WE)
    emulation_of(${source} emulation)
    if(emulation_MISSING)
      message(STATUS "convoy: compile_fail.${compiler}.${what} is not run: it needs the headers of ${emulation_MISSING}")
      continue()
    endif()
    file(STRINGS ${source} exchanges REGEX "^#include <convoy/(comm|train)/")
    if(exchanges)
      set(before trainers)
    else()
      set(before graph)
    endif()
    set(flags -include ${CMAKE_CURRENT_BINARY_DIR}/${compiler}/${before}.hpp)
    if(emulation)
      list(APPEND flags -I${CMAKE_CURRENT_SOURCE_DIR}/emulation)
      list(TRANSFORM emulation PREPEND -isystem OUTPUT_VARIABLE folders)
      list(APPEND flags ${folders})
    endif()
    add_test(NAME compile_fail.${compiler}.${what} COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/check.sh ${compiler_of_${compiler}}
                                                        ${source} ${public_include} ${flags})
    set_tests_properties(compile_fail.${compiler}.${what} PROPERTIES TIMEOUT 120 LABELS compile_fail
                                                                  FIXTURES_REQUIRED ${before}_of_${compiler})
  endforeach()
endforeach()

# Shell tests of the example programs: programs/<program>[.<part>].sh PROGRAM [MPIRUN]; exit code 77 skips. Ranks of mpirun need the
# processors for themselves: waiting, they do not yield.
file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/programs/*.sh)
foreach(script IN LISTS scripts)
  get_filename_component(program ${script} NAME_WE)
  get_filename_component(name ${script} NAME_WLE)
  if(TARGET ${program})
    set(mpirun "")
    set(serial FALSE)
    if(convoy_mpi_FOUND)
      set(mpirun ${MPIEXEC_EXECUTABLE})
      file(STRINGS ${script} starts_ranks REGEX mpirun LIMIT_COUNT 1)
      if(starts_ranks)
        set(serial TRUE)
      endif()
    endif()
    add_test(NAME programs.${name} COMMAND bash ${script} $<TARGET_FILE:${program}> ${mpirun})
    set_tests_properties(programs.${name} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 RUN_SERIAL ${serial} LABELS programs
                                                     ENVIRONMENT "${mpi_environment}")
  endif()
endforeach()

# The experiment driver and its reports, with stand-ins for trainers, mpirun and Slurm.
find_package(Python3 3.11 COMPONENTS Interpreter QUIET)
if(Python3_FOUND)
  add_test(NAME programs.experiment COMMAND ${Python3_EXECUTABLE} -B -m unittest discover -s ${CMAKE_CURRENT_SOURCE_DIR}/experiment)
  set_tests_properties(programs.experiment PROPERTIES TIMEOUT 120 LABELS programs)
else()
  message(STATUS "convoy: the experiment driver is not tested: it needs Python 3.11 or later")
endif()

add_test(NAME programs.scripts COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/programs/scripts.sh ${PROJECT_SOURCE_DIR}/scripts)
set_tests_properties(programs.scripts PROPERTIES TIMEOUT 60 LABELS programs)

# Hosts made of network namespaces, if this machine allows them.
if(TARGET test_mpi_exchange)
  set(doctor "")
  if(TARGET doctor)
    set(doctor $<TARGET_FILE:doctor>)
  endif()
  add_test(NAME programs.testbed COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/programs/testbed.sh
                                         ${PROJECT_SOURCE_DIR}/scripts/testbed.sh $<TARGET_FILE:test_mpi_exchange> ${doctor})
  set_tests_properties(programs.testbed PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE LABELS programs)
endif()

# The experiment driver on hosts that mpirun reaches over ssh.
if(Python3_FOUND AND convoy_mpi_FOUND AND TARGET bert_pretrain)
  add_test(NAME programs.hosts COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/programs/hosts.sh ${Python3_EXECUTABLE}
                                       ${PROJECT_SOURCE_DIR}/bench/experiment ${PROJECT_SOURCE_DIR}/scripts/testbed.sh
                                       $<TARGET_FILE:bert_pretrain>)
  set_tests_properties(programs.hosts PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE LABELS programs)
endif()

# The cost of Trainer itself, of the kernel of direct exchanges and of an update, in instructions.
find_program(CONVOY_VALGRIND NAMES valgrind)
find_path(CONVOY_VALGRIND_INCLUDE_DIR NAMES valgrind/callgrind.h)
mark_as_advanced(CONVOY_VALGRIND CONVOY_VALGRIND_INCLUDE_DIR)
function(add_overhead room source limit what)
  convoy_add_program(overhead_${source} SOURCES overhead/${source}.cpp)
  target_include_directories(overhead_${source} SYSTEM PRIVATE ${CONVOY_VALGRIND_INCLUDE_DIR})
  add_test(NAME ${room}_overhead COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/overhead/check.sh $<TARGET_FILE:overhead_${source}>
                                         ${limit} ${what})
  set_tests_properties(${room}_overhead PROPERTIES TIMEOUT 300 LABELS ${room})
endfunction()
if(CONVOY_VALGRIND AND CONVOY_VALGRIND_INCLUDE_DIR)
  add_overhead(train null_exec 2000 "a step of Trainer with a null exec")
  add_overhead(comm fold 5000 "a direct all-reduce's part of 16 KiB")
  add_overhead(optim update 30000 "an update of 4096 parameters and their averages")
endif()

# The format is that of clang-format 14; other versions differ in details.
if(CONVOY_CLANG_FORMAT)
  execute_process(COMMAND ${CONVOY_CLANG_FORMAT} --version OUTPUT_VARIABLE version)
  if(version MATCHES "version 14[.]")
    add_test(NAME format COMMAND bash ${PROJECT_SOURCE_DIR}/scripts/format.sh --check ${CONVOY_CLANG_FORMAT})
    set_tests_properties(format PROPERTIES TIMEOUT 120 LABELS sources)
  endif()
endif()

# The scripts, presets, folders and programs that the README names exist.
add_test(NAME readme COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/readme/check.sh ${PROJECT_SOURCE_DIR})
set_tests_properties(readme PROPERTIES TIMEOUT 60 LABELS sources)

# The errors that a guide explains can be raised.
add_test(NAME docs.errors COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/readme/errors.sh ${PROJECT_SOURCE_DIR})
set_tests_properties(docs.errors PROPERTIES TIMEOUT 60 LABELS sources)
