# The rooms' one-way link graph, and the functions that hold every target to it.
#
# A room's headers are included as "shm/ring/lane.h". They are visible only to targets that link the room's library:
# each library publishes an include root of its own that holds links to the headers of its folder and nothing else, so
# `#include "worker/list/list.h"` in worker/fetch/ does not compile, and linking mr_list there is refused below.

# room's library -> the libraries of ours that it may link
set(MR_MAY_LINK_mr_base "")
set(MR_MAY_LINK_mr_trace mr_base)
set(MR_MAY_LINK_mr_memory mr_base)
set(MR_MAY_LINK_mr_index mr_base)
set(MR_MAY_LINK_mr_ring mr_memory mr_trace mr_base)
set(MR_MAY_LINK_mr_meter mr_ring mr_memory mr_trace mr_base)
set(MR_MAY_LINK_mr_control mr_meter mr_ring mr_index mr_memory mr_trace mr_base)
set(MR_MAY_LINK_mr_verbs mr_base)
set(MR_MAY_LINK_mr_store mr_trace mr_base)
set(MR_MAY_LINK_mr_worker mr_shm mr_base mr_store)
set(MR_MAY_LINK_mr_cleanup mr_worker mr_shm mr_base mr_store)
foreach(role fetch list write tool)
  set(MR_MAY_LINK_mr_${role} mr_cleanup mr_worker mr_shm mr_base mr_store)
endforeach()
list(APPEND MR_MAY_LINK_mr_tool mr_verbs)
set(MR_MAY_LINK_mr_supervisor mr_shm mr_base)
set(MR_MAY_LINK_mr_cli mr_supervisor mr_verbs mr_shm mr_base)
set(MR_MAY_LINK_mr_mount mr_shm mr_base)
set(MR_MAY_LINK_mr_devstore mr_base)

# What release builds are hardened with (docs/security.md; tests/readme/test_hardening.py reads it from the programs).
# Not with a sanitizer, which has its own checks, nor without optimisation, which _FORTIFY_SOURCE needs.
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported()
check_c_compiler_flag(-fcf-protection MR_HAS_CET) # x86-64 only
if(MR_HAS_CET)
  set(MR_CET -fcf-protection)
endif()
if(NOT MR_SANITIZE AND NOT MR_FUZZ AND CMAKE_BUILD_TYPE MATCHES "Rel")
  set(MR_HARDEN ON)
endif()

function(_mr_options target)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE MR_VERSION="${PROJECT_VERSION}")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wpointer-arith -Wvla
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>
    $<$<BOOL:${MR_WERROR}>:-Werror>)
  if(MR_HARDEN)
    target_compile_options(${target} PRIVATE -fstack-protector-strong -fstack-clash-protection ${MR_CET}
      -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
    target_link_options(${target} PRIVATE -Wl,-z,relro,-z,now,-z,noexecstack)
  endif()
  if(MR_FUZZ) # coverage for libFuzzer, which tests/fuzz links, and for people (scripts/fuzz)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link -fno-sanitize-recover=all
      -fprofile-instr-generate -fcoverage-mapping)
    target_link_options(${target} PRIVATE -fprofile-instr-generate)
  endif()
  if(MR_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${MR_SANITIZE} -fno-omit-frame-pointer -g)
    target_link_options(${target} PRIVATE -fsanitize=${MR_SANITIZE})
  endif()
endfunction()

# mr_add_library(mr_ring FOLDER shm/ring SOURCES ... LINKS mr_memory mr_base PRIVATE_LINKS Threads::Threads)
function(mr_add_library target)
  cmake_parse_arguments(A "" "FOLDER" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  foreach(link IN LISTS A_LINKS)
    if(NOT link IN_LIST MR_MAY_LINK_${target})
      message(FATAL_ERROR "${target} must not link ${link}: see cmake/MrTargets.cmake for the link graph")
    endif()
  endforeach()
  add_library(${target} STATIC ${A_SOURCES})
  _mr_options(${target})
  set(root ${CMAKE_BINARY_DIR}/include-roots/${target})
  file(REMOVE_RECURSE ${root}) # headers that have gone
  file(MAKE_DIRECTORY ${root}/${A_FOLDER})
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${A_FOLDER}/*.h)
  foreach(header IN LISTS headers)
    get_filename_component(name ${header} NAME)
    file(CREATE_LINK ${header} ${root}/${A_FOLDER}/${name} SYMBOLIC)
  endforeach()
  target_include_directories(${target} PUBLIC ${root})
  target_link_libraries(${target} PUBLIC ${A_LINKS} PRIVATE ${A_PRIVATE_LINKS})
endfunction()

# mr_add_program(millrace SOURCES main.c LINKS mr_cli)
function(mr_add_program target)
  cmake_parse_arguments(A "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${target} ${A_SOURCES})
  _mr_options(${target})
  target_link_libraries(${target} PRIVATE ${A_LINKS})
endfunction()

# mr_add_test(lane SOURCES test_lane.c LINKS mr_shm [ARGS ...] [TIMEOUT s]): a C program test_lane that ctest runs, by the
# name of its first file below tests/: unit/shm/ring/test_lane.
function(mr_add_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;LINKS;ARGS;LABELS" ${ARGN})
  add_executable(test_${name} ${A_SOURCES})
  _mr_options(test_${name})
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(test_${name} PRIVATE ${A_LINKS} PkgConfig::CHECK)
  list(GET A_SOURCES 0 path)
  get_filename_component(path ${path} ABSOLUTE)
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR}/tests ${path})
  string(REGEX REPLACE "\\.c$" "" path ${path})
  add_test(NAME ${path} COMMAND test_${name} ${A_ARGS})
  if("tsan" IN_LIST A_LABELS OR "ring" IN_LIST A_LABELS)
    add_dependencies(tsan_tests test_${name})
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  # check ends a case after 4 s by itself, which a busy machine may need for a good one.
  set_tests_properties(${path} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}"
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=60;CK_TIMEOUT_MULTIPLIER=5") # on a machine with other work too
endfunction()
