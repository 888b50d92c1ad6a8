! The same as weather.c: moist air between two walls, periodic along x.
program weather
  use fairmile_couple ! coupling
  use mpi ! MPI
  use, intrinsic :: iso_fortran_env, only: r => real64
  implicit none
  integer, parameter :: nx = 40, nz = 20
  real(r), parameter :: c0 = 27.5629410929725921_r, gamma = 1.40027894_r, g = 9.8_r, cp = 1004, rd = 287, p0 = 1e5_r
  real(r), parameter :: theta0 = 300, dx = 20000._r / nx, dz = 10000._r / nz, beta = 0.05_r
  real(r), target :: cells(nx, nz, 5), after(nx, nz, 4)
  real(r) :: rest(nz), rest_theta(nz), face(0:nz), face_theta(0:nz)
  real(r) :: state(nx, nz, 4) = 0, stage(nx, nz, 4), change(nx, nz, 4), water(nx, nz, 3) = 0, dt, before
  character(len=256) :: word
  integer :: n, steps, file
  integer :: error ! MPI
  call get_command_argument(1, word)
  read (word, *) steps
  call get_command_argument(2, word)
  dt = 1.5_r * min(dx, dz) / 450
  call MPI_Init(error) ! MPI
  n = fairmile_couple_comm() ! MPI coupling
  call begin()
  before = mass()
  call fairmile_couple_out('cells', cells) ! coupling
  call fairmile_couple_in('after', after) ! coupling
  do n = 0, steps - 1
    call move(mod(n, 2) == 1)
    call move(mod(n, 2) == 0)
    call carry(mod(n, 2) == 1)
    call carry(mod(n, 2) == 0)
    call see()
    if (fairmile_couple_step() == fairmile_physics) & ! coupling
      call physics()
    call heat()
  end do
  call fairmile_couple_end() ! coupling
  print '(es10.3)', mass() / before - 1
  open (newunit=file, file=trim(word), access='stream', form='unformatted', status='replace')
  write (file) state, water
  close (file)
  call MPI_Finalize(error) ! MPI

contains

  pure real(r) function at_rest(z)
    real(r), intent(in) :: z
    at_rest = (p0 * (1 - g * z / (cp * theta0))**(cp / rd) / c0)**(1 / gamma)
  end function

  subroutine begin()
    integer :: i, k
    real(r) :: far
    face_theta = [(at_rest(k * dz), k=0, nz)]
    face = face_theta / theta0
    rest_theta = [(at_rest((k - 0.5_r) * dz), k=1, nz)]
    rest = rest_theta / theta0
    do k = 1, nz
      do i = 1, nx
        far = hypot(((i - 0.5_r) * dx - 10000) / 2000, ((k - 0.5_r) * dz - 2000) / 2000)
        if (far < 1) state(i, k, 4) = rest(k) * 3 * cos(far * acos(-1._r) / 2)**2
        water(i, k, 1) = 0.014_r * rest(k) * exp(-(k - 0.5_r) * dz / 2500)
      end do
    end do
  end subroutine

  ! How the state changes by what flows along x or z, and by gravity.
  subroutine flow(along_z, part_s)
    logical, intent(in) :: along_z
    real(r), intent(in) :: part_s
    real(r) :: wide(-1:nx + 2, -1:nz + 2, 4), mean(4), bend(4), near(4, 4), through(0:nx, 0:nz, 4), density, theta, speed
    integer :: i, k, v
    wide(1:nx, 1:nz, :) = stage
    wide(-1:0, 1:nz, :) = stage(nx - 1:nx, :, :)
    wide(nx + 1:nx + 2, 1:nz, :) = stage(1:2, :, :)
    wide(1:nx, -1:0, :) = spread(stage(:, 1, :), 2, 2)
    wide(1:nx, nz + 1:nz + 2, :) = spread(stage(:, nz, :), 2, 2)
    wide(1:nx, -1:0, 3) = 0
    wide(1:nx, nz + 1:nz + 2, 3) = 0
    do k = merge(0, 1, along_z), nz
      do i = merge(1, 0, along_z), nx
        do v = 1, 4
          near(:, v) = wide(i - 1:i + 2, k, v)
          if (along_z) near(:, v) = wide(i, k - 1:k + 2, v)
        end do
        mean = (7 * (near(2, :) + near(3, :)) - (near(1, :) + near(4, :))) / 12
        bend = beta * merge(dz, dx, along_z) / (16 * part_s) * (near(4, :) - near(1, :) + 3 * (near(2, :) - near(3, :)))
        if (along_z .and. (k == 0 .or. k == nz)) then
          mean(3) = 0
          bend(1) = 0
        end if
        density = mean(1) + merge(face(k), rest(max(k, 1)), along_z)
        theta = mean(4) + merge(face_theta(k), rest_theta(max(k, 1)), along_z)
        speed = mean(merge(3, 2, along_z)) / density
        through(i, k, :) = bend + [mean(merge(3, 2, along_z)), mean(2) * speed, mean(3) * speed, theta * speed]
        if (along_z) through(i, k, 3) = through(i, k, 3) + c0 * (theta**gamma - face_theta(k)**gamma)
        if (.not. along_z) through(i, k, 2) = through(i, k, 2) + c0 * theta**gamma
      end do
    end do
    if (along_z) then
      change = (through(1:, :nz - 1, :) - through(1:, 1:, :)) / dz
      change(:, :, 3) = change(:, :, 3) - g * stage(:, :, 1)
    else
      change = (through(:nx - 1, 1:, :) - through(1:, 1:, :)) / dx
    end if
  end subroutine

  subroutine move(along_z)
    logical, intent(in) :: along_z
    integer :: part
    stage = state
    do part = 3, 1, -1
      call flow(along_z, dt / part)
      stage = state + dt / part * change
    end do
    state = stage
  end subroutine

  ! Carry the water with the wind.
  subroutine carry(along_z)
    logical, intent(in) :: along_z
    real(r) :: speed(nx, nz), at_face, through(0:nx, 0:nz)
    integer :: i, k, w, from_i, from_k
    do w = 1, 3
      do k = 1, nz
        speed(:, k) = state(:, k, merge(3, 2, along_z)) / (rest(k) + state(:, k, 1))
      end do
      through = 0
      do k = merge(0, 1, along_z), nz
        do i = merge(1, 0, along_z), nx
          if (along_z .and. (k == 0 .or. k == nz)) cycle
          from_i = merge(i, modulo(i, nx) + 1, along_z)
          from_k = merge(k + 1, k, along_z)
          at_face = (speed(modulo(i - 1, nx) + 1, k) + speed(from_i, from_k)) / 2
          through(i, k) = at_face * merge(water(modulo(i - 1, nx) + 1, k, w), water(from_i, from_k, w), at_face > 0)
        end do
      end do
      if (along_z) water(:, :, w) = water(:, :, w) + dt / dz * (through(1:, :nz - 1) - through(1:, 1:))
      if (.not. along_z) water(:, :, w) = water(:, :, w) + dt / dx * (through(:nx - 1, 1:) - through(1:, 1:))
    end do
  end subroutine

  ! Condense some of the vapour everywhere, which heats the air.
  subroutine physics()
    real(r) :: condensed(nx, nz)
    condensed = 0.001_r * cells(:, :, 3)
    after(:, :, 1) = cells(:, :, 1) + 2500 * condensed
    after(:, :, 2) = cells(:, :, 3) - condensed
    after(:, :, 3) = cells(:, :, 4) + condensed
    after(:, :, 4) = cells(:, :, 5)
  end subroutine

  subroutine see()
    integer :: k
    do k = 1, nz
      cells(:, k, 2) = rest(k) + state(:, k, 1)
      cells(:, k, 1) = c0 * (rest_theta(k) + state(:, k, 4))**gamma / (rd * cells(:, k, 2))
    end do
    cells(:, :, 3:5) = water
  end subroutine

  subroutine heat()
    integer :: k
    do k = 1, nz
      state(:, k, 4) = state(:, k, 4) + (rest_theta(k) + state(:, k, 4)) * (after(:, k, 1) / cells(:, k, 1) - 1)
    end do
    water = after(:, :, 2:4)
  end subroutine

  real(r) function mass()
    mass = sum(state(:, :, 1) + spread(rest, 1, nx))
  end function
end program
