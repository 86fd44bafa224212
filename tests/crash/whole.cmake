# The kill harness over whole processes: README.md. The code under test is compiled once as it is and once a mutant, as
# shared libraries, so that the harness tells its instructions by their address. Included by CMakeLists.txt, which leaves
# out what is not x86-64 and the sanitizers (instrumented code is not what is stepped).

function(_crash_options target)
  _mr_options(${target})
  target_compile_options(${target} PRIVATE -O2)
  target_include_directories(${target} PRIVATE ${crash_root}
    $<TARGET_PROPERTY:mr_shm,INTERFACE_INCLUDE_DIRECTORIES> $<TARGET_PROPERTY:mr_base,INTERFACE_INCLUDE_DIRECTORIES>)
  set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL TRUE)
endfunction()

# What no mutant changes.
add_library(crash_same OBJECT
  ${CMAKE_SOURCE_DIR}/shm/arena.c ${CMAKE_SOURCE_DIR}/shm/board.c ${CMAKE_SOURCE_DIR}/shm/counters.c
  ${CMAKE_SOURCE_DIR}/shm/segment.c ${CMAKE_SOURCE_DIR}/shm/views.c ${CMAKE_SOURCE_DIR}/shm/wake.c)
_crash_options(crash_same)
add_library(crash_harness OBJECT
  access.c cast.c check.c coverage.c drain.c kernel.c main.c producers.c readers.c report.c scenarios.c setups.c stage.c
  supervisor.c tracee.c)
_crash_options(crash_harness)
add_custom_target(crash_programs)

function(_crash_program name mutant)
  add_library(crash_code_${mutant} SHARED
    ${CMAKE_SOURCE_DIR}/shm/consumer.c ${CMAKE_SOURCE_DIR}/shm/extents.c ${CMAKE_SOURCE_DIR}/shm/lane.c
    ${CMAKE_SOURCE_DIR}/shm/producer.c $<TARGET_OBJECTS:crash_same>)
  _crash_options(crash_code_${mutant})
  target_compile_definitions(crash_code_${mutant} PRIVATE MR_MUTANT=${mutant})
  target_link_libraries(crash_code_${mutant} PRIVATE mr_base Threads::Threads)
  target_link_options(crash_code_${mutant} PRIVATE -Wl,-z,now)
  add_executable(${name} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:crash_harness>)
  target_link_libraries(${name} PRIVATE crash_code_${mutant} mr_base Threads::Threads)
  target_link_options(${name} PRIVATE -Wl,-z,now)
  set_target_properties(${name} crash_code_${mutant} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(crash_programs ${name})
endfunction()

_crash_program(test_crash 0)
foreach(mutant 1 2 3 4 5 6 7 8 9 12 15 16 17) # main.c has their names; 13 and 14 are the harness' own
  _crash_program(crash_mutant_${mutant} ${mutant})
endforeach()

# About 25 s of one processor, mutants included: with the slow ones, so that a commit does not wait for it.
add_test(NAME crash_build COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target crash_programs)
set_tests_properties(crash_build PROPERTIES TIMEOUT 300 LABELS "crash;slow" FIXTURES_SETUP crash_programs)
add_test(NAME crash COMMAND ${CMAKE_BINARY_DIR}/tests/test_crash)
set_tests_properties(crash PROPERTIES TIMEOUT 300 LABELS "crash;slow" FIXTURES_REQUIRED crash_programs)
# Two builds in one folder at the same time get into each other's way.
set_tests_properties(crash_build crash_mutants_build PROPERTIES RESOURCE_LOCK build_folder)
